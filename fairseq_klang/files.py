"""Files: text line by line, output whole or not at all, locks, JSON, hashes, and the commit of this
code."""

import codecs
import contextlib
import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import zlib
from typing import IO, Any, BinaryIO, Dict, Iterable, Iterator, Optional, Type, Union

import filelock

from .errors import KlangError
from .version import __version__

PACKAGE = os.path.dirname(os.path.abspath(__file__))  # what --user-dir names

Path = Union[str, "os.PathLike[str]"]


# -- input ----------------------------------------------------------------------------------------


class TextError(KlangError):
    """A text file that cannot be read."""


def raw_lines(path: Path, stream: Optional[BinaryIO] = None) -> Iterator[str]:
    """Yield each line of a UTF-8 file with its end (only "\\n" is one), packed with gzip or not.

    A byte order mark at the start of a line is dropped.
    stream: read this open binary stream, which errors call `path`.
    Raises TextError naming the file and line.
    """
    number = 0
    try:
        with contextlib.ExitStack() as stack:
            if stream is None:
                opened = stack.enter_context(open(path, "rb"))
                packed = str(path).endswith(".gz") or opened.peek(2)[:2] == b"\x1f\x8b"
                lines: Iterable[bytes] = (
                    stack.enter_context(gzip.open(opened)) if packed else opened
                )
            else:
                lines = stream
            for number, line in enumerate(lines, 1):  # noqa: B007 (for the errors)
                yield line.decode("utf-8").lstrip("\ufeff")
    except FileNotFoundError:
        raise TextError(f"{path} does not exist") from None
    except UnicodeDecodeError as error:
        reason = error.reason
        if number == 1 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            reason = "it is UTF-16"
        raise TextError(
            f"{path} line {number} is not UTF-8 ({reason}); convert the file, e.g. with iconv"
        ) from None
    except (EOFError, zlib.error) as error:
        raise TextError(
            f"{path} is damaged or cut short after line {number} ({error}); fetch it again"
        ) from None
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}") from None


def read_lines(path: Path, stream: Optional[BinaryIO] = None) -> Iterator[str]:
    """Yield each line of a UTF-8 file as :func:`raw_lines` does, without its end and with every run
    of white space made one space.

    Other separators that Python or fairseq would split at (U+2028, "\\r", ...) become spaces, so
    that every later tool sees the same number of lines.
    """
    for line in raw_lines(path, stream):
        yield " ".join(line.split())


# -- output ----------------------------------------------------------------------------------------


class OutputError(KlangError):
    """A file that cannot be written."""


def _is_written_in_place(path: str) -> bool:
    """Whether `path` leads to something that a rename would destroy: a pipe, a device, an open
    descriptor."""
    if os.path.abspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return True  # also where a plain file stands behind it: what it held before is not ours
    return os.path.exists(path) and not os.path.isfile(path)


def _append(path: str, _: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND)


@contextlib.contextmanager
def written(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """The stream to write a file through, which takes its name only when it is complete.

    A link is followed: the file behind it is replaced, the link stays. What is there and is no
    plain file (a named pipe, a device, /dev/stdout) is written straight into. After an error no
    part of the file is left, and an older one is untouched.

    Args:
        path: the file; its folder must exist.
        mode: `w` for text (UTF-8, "\\n" as it is), `wb` for bytes.
    Raises:
        OutputError: a folder, or a place that cannot be written; in one line. A broken pipe stays a
            BrokenPipeError.
    """
    name = os.fspath(path)
    text: Dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if not name or os.path.isdir(name):
        raise OutputError(f"{name or repr(name)} is a folder; name a file in it")
    straight = _is_written_in_place(name)
    real = name if straight else os.path.realpath(name)
    partial = real if straight else f"{real}.partial"
    try:
        with open(partial, mode, opener=_append if straight else None, **text) as stream:
            yield stream
        if not straight:
            if os.path.exists(real):
                shutil.copymode(real, partial)
            os.replace(partial, real)
    except BaseException as error:
        if not straight:
            with contextlib.suppress(OSError):
                os.remove(partial)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            reason = error.strerror or str(error)
            raise OutputError(f"{name} cannot be written: {reason}") from None
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON; the file is complete or absent. Raises OutputError."""
    with written(path) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False)
        stream.write("\n")


def read_json(path: Path, error: Type[KlangError] = KlangError, fix: str = "delete it") -> Any:
    """The JSON in a file, or None where there is no such file; raises `error`, with the `fix`, for
    anything else."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError):
        raise error(f"{path} is damaged: it is not JSON; {fix}") from None


# -- locks -----------------------------------------------------------------------------------------


class LockedError(KlangError):
    """A folder that another process is at work in."""


@contextlib.contextmanager
def locked(folder: Path, patience: float = 0.0, name: str = ".lock") -> Iterator[None]:
    """Hold `folder` against every other process; the lock ends with the process, however that ends.

    patience: seconds to wait for another holder. Raises LockedError when the folder is still held
        then.
    """
    lock = filelock.FileLock(os.path.join(os.fspath(folder), name))
    try:
        lock.acquire(timeout=patience)
    except filelock.Timeout:
        raise LockedError(
            f"{folder} is in use by another process; wait for it, or end it"
        ) from None
    try:
        yield
    finally:
        lock.release()


# -- what a file, the code and its neighbours are
# ----------------------------------------------------


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def git_hash() -> Optional[str]:
    """The commit of the checkout that this code lies in, "+" where tracked files were changed
    since.

    None without git, and for an installed copy, which may lie in somebody else's checkout.
    """
    here = os.path.abspath(__file__)
    commands = (
        ["ls-files", "--error-unmatch", here],
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "-uno"],
    )
    outputs = []
    for command in commands:
        try:
            result = subprocess.run(
                ["git", "-C", os.path.dirname(here), *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None
        if result.returncode:
            return None
        outputs.append(result.stdout.decode().strip())
    return outputs[1] + ("+" if outputs[2] else "")


FAIRSEQS = ("fairseq", "ve-fairseq", "fairseq-fixed")  # the distributions that bring the module


def versions(*more: str) -> Dict[str, str]:
    """{name: version} of Python, this package, fairseq's distribution and the installed ones of
    `more`."""
    from importlib import metadata

    found = {"python": platform.python_version(), "fairseq-klang": __version__}
    for name in (*FAIRSEQS, *more):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
