"""IWSLT14 German-English: fetch the archive, read its text, clean and split it by the rules of
fairseq's published recipe."""

import contextlib
import gzip
import itertools
import os
import pathlib
import re
import shutil
import tarfile
import zlib
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Set

from ..errors import KlangError
from ..files import locked, read_lines, set_aside, sha256
from .download import BrokenError, DownloadError, download
from .options import PrepareError, PrepareOptions
from .prepare import make_out, prepare_held
from .steps import Facts, damage, finished_step, read_record, remove_step, run_step, say
from .text import copy_raw, find_text, open_text, tokenize_file

MIRRORS = (
    # Named with http in fairseq's examples/translation/prepare-iwslt14.sh (main branch) and in
    # joeynmt's scripts/get_iwslt14_bpe.sh; fairseq's own READMEs use the same host with https,
    # which is tried first.
    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    # The original host, named in fairseq's script up to release 0.10; dead since 2020 (fairseq
    # issue 2984), kept should it return.
    "https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz",
)
# wget's log of the original host, in fairseq issue 1493; no trustworthy SHA-256 is published
ARCHIVE_BYTES = 19982877

LANGS = ("de", "en")
TRAIN = "train.tags.de-en"
TESTS = tuple(
    f"IWSLT14.{name}.de-en"
    for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
)
WHOLE = (
    "texts",
    "de",
    "en",
    "de-en.tgz",
)  # where 2014-01.tgz, all languages of the campaign, holds de-en.tgz

PUBLISHED = {"train": 160239, "valid": 7283, "test": 6750}  # pairs, fold 0
FOLDS = 23
MAX_TOKENS, MAX_RATIO, MAX_CHARACTERS = 175, 1.5, 1000


class ArchiveError(PrepareError):
    """An archive that cannot be fetched or used."""


class CutError(ArchiveError, BrokenError):
    """An archive that was damaged or cut short on its way."""


# -- the archive -----------------------------------------------------------------------------------


def check_archive(path: str, name: str, size: Optional[int] = None, digest: str = "") -> None:
    """Raise ArchiveError, which calls the file `name`, unless it is a whole .tgz file of this size
    (bytes) and SHA-256, where given."""
    with open(path, "rb") as stream:
        head = stream.read(512)
    if re.match(rb"(\xef\xbb\xbf)?\s*<", head):
        raise ArchiveError(f"{name} is a web page, not the archive")
    if not head.startswith(b"\x1f\x8b"):
        raise ArchiveError(f"{name} is not a .tgz file")
    try:
        with gzip.open(path) as stream:  # to the end, where its checksum is
            while stream.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error) as error:
        raise CutError(f"{name} is damaged or cut short ({error})") from None
    found = os.path.getsize(path)
    if size and found != size:
        raise ArchiveError(f"{name} has {found:,} bytes, not {size:,}; --any-archive accepts it")
    if digest and sha256(path) != digest:
        raise ArchiveError(f"{name} has SHA-256 {sha256(path)}, not --sha256 {digest}")


def fetch_archive(
    urls: Sequence[str], path: str, size: Optional[int] = None, digest: str = ""
) -> None:
    """Fetch the archive to `path` from the first of `urls` that has it whole, of this size and
    SHA-256 where given; raises ArchiveError with the reason of every address."""
    for url in urls:
        if not re.match(r"https?://", url):
            raise ArchiveError(
                f"--url {url} is no http:// or https:// address; a file is given by --archive"
            )
    try:
        download(urls, path, lambda fetched, url: check_archive(fetched, url, size, digest))
    except DownloadError as error:
        raise ArchiveError(
            f"could not fetch the archive: {error}. Run the command again, name another address by "
            "--url, or give --archive PATH, which may be de-en.tgz or the 2014-01.tgz of "
            "https://wit3.fbk.eu/2014-01"
        ) from None
    say(f"  kept as {path}; for another preparation: --archive {path}")


def extract(archive: str, folder: str) -> None:
    """Write the archive's files that are needed to `folder`; raises ArchiveError on an unsafe or
    missing one.

    Names in the archive decide nothing but which file it is: each goes to a name of ours in
    `folder`.
    """
    wanted = {f"de-en/{TRAIN}.{lang}": f"{TRAIN}.{lang}" for lang in LANGS}
    wanted.update(
        {f"de-en/{name}.{lang}.xml": f"{name}.{lang}.xml" for name in TESTS for lang in LANGS}
    )
    try:
        with tarfile.open(archive, "r:gz") as tar:
            found = _extract(tar, archive, wanted, folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ArchiveError(f"{archive} is no tar archive ({error})") from None
    missing = [member for member, name in wanted.items() if name not in found]
    if missing:
        raise ArchiveError(
            f"{archive} is not the archive of IWSLT14 German-English: it lacks {', '.join(missing)}"
        )


def _extract(tar: tarfile.TarFile, archive: str, wanted: Dict[str, str], folder: str) -> Set[str]:
    found: Set[str] = set()
    for member in tar:
        parts = pathlib.PurePosixPath(member.name).parts
        if ".." in parts or member.name.startswith("/"):
            raise ArchiveError(
                f"{archive} is unsafe: it holds a file named {member.name!r}; get the archive "
                "elsewhere"
            )
        name = wanted.get("/".join(parts))
        if name is None and parts[-len(WHOLE) :] != WHOLE:
            continue
        if not member.isreg():
            raise ArchiveError(
                f"{archive} is unsafe: {member.name} is a link or special file; get the archive "
                "elsewhere"
            )
        if name is None:
            with tarfile.open(fileobj=tar.extractfile(member), mode="r:gz") as inner:
                return _extract(inner, archive, wanted, folder)
        source = tar.extractfile(member)
        assert source is not None  # it is a regular file
        with source, open(os.path.join(folder, name), "wb") as target:
            shutil.copyfileobj(source, target)
        found.add(name)
    return found


# -- its text --------------------------------------------------------------------------------------


def training_lines(path: str) -> Iterator[str]:
    """Yield the training sentences of a train.tags file: titles and descriptions of the talks
    count, other tagged lines do not."""
    for line in read_lines(path):
        if not any(tag in line for tag in ("<url>", "<talkid>", "<keywords>")):
            yield " ".join(re.sub("</?(title|description)>", "", line).split())


def segments(path: str) -> Iterator[str]:
    """Yield the sentences of a test set's .xml file; the typographic apostrophe becomes the plain
    one, as in the recipe."""
    for line in read_lines(path):
        if "<seg id" in line:
            line = re.sub(r'<seg id="[0-9]*">\s*', "", line)
            yield re.sub(r"\s*</seg>\s*", "", line).replace("\u2019", "'")


def keeps(source: str, target: str) -> bool:
    """Whether cleaning keeps a pair of tokenised lines (Moses' clean-corpus-n with ratio 1.5 and 1
    to 175 tokens)."""
    sides = source.split(), target.split()
    shorter, longer = sorted(map(len, sides))
    return (
        1 <= shorter
        and longer <= MAX_TOKENS
        and longer <= MAX_RATIO * shorter
        and max(map(len, itertools.chain(*sides))) <= MAX_CHARACTERS
    )


def split_of(number: int, fold: int = 0) -> str:
    """The split of the number-th pair that cleaning keeps, counted from 1: every 23rd is
    validation."""
    return "valid" if number % FOLDS == fold else "train"


def published_counts(fold: int = 0) -> Dict[str, int]:
    """{split: pairs} that the published archive has in this fold."""
    total = PUBLISHED["train"] + PUBLISHED["valid"]
    valid = len(range(fold or FOLDS, total + 1, FOLDS))
    return {"train": total - valid, "valid": valid, "test": PUBLISHED["test"]}


def make_text(archive: str, folder: str, fold: int, workers: int = 1) -> Facts:
    """Write train, valid and test of both languages to `folder`: untokenised text, cleaned by the
    number of its tokens.

    Returns {"lines": {split: pairs}, "cleaning": {"read", "blank", "dropped"}: training pairs}.
    Raises ArchiveError.
    """
    try:
        return _make_text(archive, folder, fold, workers)
    except ArchiveError:
        raise
    except KlangError as error:  # names a file that is about to go
        raise ArchiveError(
            str(error).replace(os.path.join(folder, "work", ""), f"{archive}: ")
        ) from None


def _make_text(archive: str, folder: str, fold: int, workers: int) -> Facts:
    work = os.path.join(folder, "work")
    os.mkdir(work)
    extract(archive, work)
    paths = {
        kind: [os.path.join(work, f"{kind}.{lang}") for lang in LANGS]
        for kind in ("tags", "segments", "all", "tok")
    }
    sizes = []
    for number, lang in enumerate(LANGS):
        _write(training_lines(os.path.join(work, f"{TRAIN}.{lang}")), paths["tags"][number])
        sizes.append(
            [
                _write(
                    segments(os.path.join(work, f"{name}.{lang}.xml")),
                    paths["segments"][number],
                    "a",
                )
                for name in TESTS
            ]
        )
    for name, here, there in zip(TESTS, *sizes):
        if here != there:
            raise ArchiveError(
                f"{archive}: {name} has {here} sentences in de but {there} in en; get the archive "
                "elsewhere"
            )
    read = copy_raw("train", paths["tags"], paths["all"])
    # A test pair with an empty side would go too, and be missed when the lines are counted.
    lines = {
        "train": 0,
        "valid": 0,
        "test": copy_raw(
            "train", paths["segments"], [os.path.join(folder, f"test.{lang}") for lang in LANGS]
        )["kept"],
    }
    tokens = PrepareOptions(escape=True, keep_case=True, workers=workers)
    for source, target, lang in zip(paths["all"], paths["tok"], LANGS):
        tokenize_file(source, target, lang, tokens)
    with contextlib.ExitStack() as stack:
        outputs = {
            split: [
                stack.enter_context(open_text(os.path.join(folder, f"{split}.{lang}"), "w"))
                for lang in LANGS
            ]
            for split in ("train", "valid")
        }
        inputs = [stack.enter_context(open_text(path)) for path in paths["all"] + paths["tok"]]
        for *pair, source, target in zip(*inputs):
            if keeps(source, target):
                split = split_of(lines["train"] + lines["valid"] + 1, fold)
                lines[split] += 1
                for line, output in zip(pair, outputs[split]):
                    output.write(line)
    shutil.rmtree(work)
    dropped = read["kept"] - lines["train"] - lines["valid"]
    return {
        "lines": lines,
        "cleaning": {"read": read["read"], "blank": read["dropped"], "dropped": dropped},
    }


def _write(lines: Iterable[str], path: str, mode: str = "w") -> int:
    """Write lines to a file; returns how many."""
    count = 0
    with open_text(path, mode) as stream:
        for count, line in enumerate(lines, 1):  # noqa: B007
            stream.write(line + "\n")
    return count


# -- all of it -------------------------------------------------------------------------------------


def prepare_iwslt14(
    out: Any,
    options: PrepareOptions,
    *,
    archive: Optional[str] = None,
    cache: Optional[str] = None,
    urls: Sequence[str] = (),
    digest: str = "",
    fold: int = 0,
    any_archive: bool = False,
) -> Facts:
    """Prepare IWSLT14 German-English below the folder `out`. The archive, OUT/text and every step
    of `prepare` are reused when they are there.

    Args:
        options: of the steps after the text is made.
        archive: path of de-en.tgz, or of 2014-01.tgz; without it the archive is fetched from `urls`
            (default MIRRORS) into the folder `cache` (default `out`), unless it is there.
        digest: SHA-256 that it must have.
        fold: validation is every 23rd pair from this one, 0-22; fairseq's is 0.
        any_archive: go on where size or line counts are not the published ones.
    Returns:
        The content of OUT/prepare.json.
    Raises:
        PrepareError: an archive, options or folders that do not go together.
    """
    if set(options.langs) != set(LANGS):
        raise PrepareError(
            f"IWSLT14 here is German and English; -s {options.source_lang} -t "
            f"{options.target_lang} is not"
        )
    if not 0 <= fold < FOLDS:
        raise PrepareError(f"--fold is {fold}; it must be 0 to {FOLDS - 1}")
    digest = digest.lower()
    if digest and not re.fullmatch("[0-9a-f]{64}", digest):
        raise PrepareError(f"--sha256 is {digest!r}; it must be 64 hexadecimal digits")
    if archive is not None and not os.path.isfile(archive):
        raise PrepareError(f"--archive {archive} is no file; without --archive it is fetched")
    out = make_out(out)
    with locked(out):
        return _prepare_held(out, options, archive, cache, urls, digest, fold, any_archive)


# What is read of the facts on OUT/text.
_FACTS = {"lines": dict.fromkeys(PUBLISHED, int), "cleaning": dict}


def _prepare_held(
    out: str,
    options: PrepareOptions,
    archive: Optional[str],
    cache: Optional[str],
    urls: Sequence[str],
    digest: str,
    fold: int,
    any_archive: bool,
) -> Facts:
    folder = os.path.join(out, "text")
    lost = damage(folder) if os.path.exists(folder) else "it is not there"
    path = os.path.abspath(archive or os.path.join(cache or out, "de-en.tgz"))
    if not os.path.exists(path) and not lost:
        known = read_record(folder)[0].get(
            "archive"
        )  # the archive has been removed, its text is here
    else:
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.ExitStack() as stack:
                if os.path.realpath(os.path.dirname(path)) != os.path.realpath(out):
                    stack.enter_context(locked(os.path.dirname(path)))
                size = None if urls or any_archive else ARCHIVE_BYTES
                fetch_archive(urls or MIRRORS, path, size, digest)
        elif urls and not archive:
            say(f"{path} is there, so that no --url is asked; delete it to fetch another")
        known = sha256(path)
    if digest and known != digest:
        hint = "" if archive else "; delete it to fetch another"
        raise ArchiveError(f"{path} has SHA-256 {known}, not --sha256 {digest}{hint}")

    def work(partial: str) -> Facts:
        try:
            check_archive(path, path)
            return make_text(path, partial, fold, options.workers)
        except ArchiveError as error:
            if archive:
                raise ArchiveError(f"{error}; give another --archive") from None
            aside = set_aside(path, ".unusable")  # where it was, no other would ever be fetched
            raise ArchiveError(
                f"{error}; moved to {aside}: run the command again, or with another --url"
            ) from None

    key = {"archive": known, "fold": fold}
    facts = finished_step(out, "text", key, _FACTS)
    if facts is not None and lost:
        say(f"{folder} is damaged: {lost}; made again")
        remove_step(folder)
        facts = None
    if facts is None:
        say(f"[text] read {path}, clean and split it")
        facts = run_step(out, "text", key, work)
    lines, published = facts["lines"], published_counts(fold)
    if lines != published:
        found, right = (
            " / ".join(f"{counts[split]:,}" for split in PUBLISHED) for counts in (lines, published)
        )
        told = (
            f"{path} has {found} pairs (train / valid / test) after cleaning, not the published "
            f"{right}"
        )
        if not any_archive:
            raise ArchiveError(
                f"{told}; it is another archive, or another version of the tokenizer; "
                "--any-archive goes on with it"
            )
        say(f"  {told}")
    source = {
        "archive": path,
        "sha256": known,
        "fold": fold,
        "cleaning": facts["cleaning"],
        "published_counts": lines == published,
    }
    paths = {
        split: [find_text(os.path.join(folder, split), lang) for lang in options.langs]
        for split in ("train", "valid", "test")
    }
    return prepare_held(paths, out, options, source)
