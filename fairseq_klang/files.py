"""Files: text by lines, output whole or not at all, locks, JSON, hashes, this code's commit."""

import codecs
import contextlib
import errno
import glob
import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import uuid
import zlib
from typing import (
    IO,
    Any,
    BinaryIO,
    Dict,
    Iterable,
    Iterator,
    Mapping,
    Optional,
    Tuple,
    Type,
    Union,
)

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
        raise TextError(_not_text(path, number, error)) from None
    except (EOFError, zlib.error) as error:
        raise TextError(
            f"{path} is damaged or cut short after line {number} ({error}); fetch it again"
        ) from None
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}") from None


_PACKED = {  # what files begin with
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


def _not_text(path: Path, number: int, error: UnicodeDecodeError) -> str:
    """What to tell of a line that is not UTF-8."""
    reason, line = error.reason, bytes(error.object)
    if reason == "unexpected end of data" and not line.endswith(b"\n"):
        return f"{path} stops in the middle of line {number}; make it, or fetch it, again"
    if number == 1:
        for start, packer in _PACKED.items():
            if line.startswith(start):
                return f"{path} is packed with {packer}; unpack it first"
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            reason = "it is UTF-16"
    return f"{path} line {number} is not UTF-8 ({reason}); convert the file, e.g. with iconv"


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


def _target(path: str) -> Tuple[str, bool]:
    """(the file that `path` leads to, whether it is to be written straight into).

    Links are followed one by one. Those of /proc are not: /dev/stdout leads there, and a file
    behind it is open, so that a rename would take its name away from whoever holds it.
    """
    for _ in range(40):  # as many links as Linux follows
        folder, name = os.path.split(path)
        path = os.path.join(os.path.realpath(folder), name)
        if path.startswith(("/proc/", "/dev/fd/")):
            return path, True
        if not os.path.islink(path):
            return path, os.path.exists(path) and not os.path.isfile(path)
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _open_straight(path: str, _: int) -> int:
    """A descriptor that adds to what is there; for an open file of this process a copy of its own,
    so that both go on from the same place."""
    folder, name = os.path.split(path)
    if folder in (f"/proc/{os.getpid()}/fd", "/dev/fd") and name.isdigit():
        return os.dup(int(name))
    return os.open(path, os.O_WRONLY | os.O_APPEND)


@contextlib.contextmanager
def _telling(path: str, *own: str) -> Iterator[None]:
    """Failures to write `path` as an OutputError; those of other files, and a broken pipe, go on.

    own: the other names under which `path` is written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        failed = error.filename
        if isinstance(failed, str) and not any(
            f"{name}/".startswith(f"{failed}/") or failed.startswith(f"{name}/")
            for name in (path, *own)
        ):
            raise
        reason = error.strerror or str(error)
        raise OutputError(f"{path} cannot be written: {reason}") from None


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
    text: Dict[str, Any] = {}
    if "b" not in mode:  # a file's name that is not UTF-8 is spelled out
        text = {"encoding": "utf-8", "newline": "\n", "errors": "backslashreplace"}
    if not name or name.endswith(os.sep) or os.path.isdir(name):
        raise OutputError(f"{name or repr(name)} is a folder; name a file in it")
    with _telling(name):
        real, straight = _target(name)
    if straight:
        with _telling(name, real), open(real, mode, opener=_open_straight, **text) as stream:
            yield stream
        return
    partial = f"{real}.{uuid.uuid4().hex[:8]}.partial"  # two writers do not mix
    try:
        with _telling(name, real, partial):
            with open(partial, mode.replace("w", "x"), **text) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())  # or a power cut could leave the name without the content
            if os.path.exists(real):
                shutil.copymode(real, partial)
            os.replace(partial, real)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


@contextlib.contextmanager
def filled_folder(path: Path, alone: bool = False) -> Iterator[str]:
    """The folder to fill, which takes the name `path` only when it is complete; after an error
    nothing of it is left.

    alone: nobody else fills `path` now (a lock is held), so what killed processes left goes first.
    Raises OutputError where `path` exists, or cannot be written.
    """
    name = os.path.abspath(os.fspath(path))
    if os.path.lexists(name):
        raise OutputError(f"{name} exists; choose another folder, or remove it")
    partial = _beside(name)
    try:
        with _telling(name, partial):
            os.makedirs(os.path.dirname(name), exist_ok=True)
            if alone:
                for left in glob.glob(_beside(glob.escape(name), "*")):
                    shutil.rmtree(left, ignore_errors=True)
            os.mkdir(partial)
            yield partial
            os.rename(partial, name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _beside(folder: str, mark: Optional[str] = None) -> str:
    """The name of a folder that is being filled, or removed."""
    parent, name = os.path.split(folder)
    return os.path.join(parent, f".{name}.{mark or uuid.uuid4().hex[:8]}.partial")


def remove_folder(folder: Path) -> None:
    """Remove a folder so that a kill half-way leaves no half of it under its name."""
    aside = _beside(os.path.abspath(os.fspath(folder)))
    os.rename(folder, aside)
    shutil.rmtree(aside)


def set_aside(path: Path, ending: str) -> str:
    """Rename a file that is of no use, so that its name is free; returns the new name."""
    aside = os.fspath(path) + ending
    os.replace(path, aside)
    return aside


def write_json(path: Path, value: Any) -> None:
    """Write JSON; the file is complete or absent. Raises OutputError."""
    with written(path) as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False)
        stream.write("\n")


# {name: what an object must hold there}: a type, several, or an object with fields of its own.
Fields = Mapping[str, Any]


def read_json(
    path: Path,
    error: Type[KlangError] = KlangError,
    fix: str = "delete it",
    fields: Optional[Fields] = None,
) -> Any:
    """The JSON in a file, or None where there is no such file.

    fields: {name: type, or fields of its own} that an object must hold; None takes any JSON.
    Raises `error`, which names the `fix`, for anything else.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError):
        raise error(f"{path} is damaged: it is not JSON; {fix}") from None
    misfit = "" if fields is None else _misfit(value, fields, "it")
    if misfit:
        raise error(f"{path} is damaged: {misfit}; {fix}")
    return value


def _misfit(value: Any, wanted: Any, name: str) -> str:
    """What is wrong with a value of JSON, or ""."""
    if not isinstance(value, dict if isinstance(wanted, Mapping) else wanted):
        text = json.dumps(value)
        return f"{name} is {text if len(text) <= 40 else text[:40] + '...'}"
    parts = wanted.items() if isinstance(wanted, Mapping) else ()
    return next(filter(None, (_misfit(value.get(key), kind, key) for key, kind in parts)), "")


# -- locks -----------------------------------------------------------------------------------------


class LockedError(KlangError):
    """A folder that another process is at work in."""


@contextlib.contextmanager
def locked(folder: Path, patience: float = 0.0, name: str = ".lock") -> Iterator[None]:
    """Hold `folder` against every other process; the lock ends with the process, however that ends.

    A forked child that outlives the process keeps the lock, a spawned one does not. A folder that
    this process may not write to is not held: nothing in it can change.

    patience: seconds to wait for another holder. Raises LockedError when the folder is still held
        then, OutputError where it cannot be locked.
    """
    if os.path.isdir(folder) and not os.access(folder, os.W_OK):
        yield
        return
    path = os.path.join(os.fspath(folder), name)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except filelock.Timeout:
        raise LockedError(
            f"{folder} is in use by another process; wait for it, or end it"
        ) from None
    except (OSError, NotImplementedError) as error:  # the latter: the file system has no locks
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{path} cannot be locked: {reason}") from None
    try:
        yield
    finally:
        lock.release()


# -- what a file and the code are ------------------------------------------------------------------


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def git_hash() -> Optional[str]:
    """The commit of the checkout that this code lies in, with a "+" where tracked files changed.

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
