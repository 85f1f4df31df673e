"""IWSLT14 German-English: fetch the archive, read its text, clean and split it by the rules of
fairseq's published recipe."""

import contextlib
import glob
import gzip
import http.client
import itertools
import json
import os
import pathlib
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib

from tqdm import tqdm

from ..errors import KlangError
from ..files import read_lines, sha256
from ..version import __version__
from .prepare import (
    PrepareError,
    PrepareOptions,
    copy_raw,
    damage,
    find_text,
    finished_step,
    hold,
    make_out,
    prepare_held,
    read_record,
    remove_step,
    run_step,
    say,
    tokenize_file,
)

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

PRESETS = {
    "bpe8k": {"subword": "bpe", "vocab_size": 8000},
    "bpe32k": {"subword": "bpe", "vocab_size": 32000},
    "bpe10k": {
        "subword": "bpe",
        "vocab_size": 10000,
        "dictionary": "separate",
    },  # fairseq's own recipe
    "sentencepiece": {"subword": "sentencepiece", "vocab_size": 8000},
    "word": {"subword": "word", "vocab_size": 56652, "word_cut": "threshold"},
}
BY_PRESET = (
    "subword",
    "vocab_size",
    "word_cut",
    "dictionary",
    "escape",
)  # the options that a preset decides

ATTEMPTS = 3  # for each mirror, where a transfer breaks
TIMEOUT = 30  # seconds without a byte
WAIT = 2  # seconds before the next attempt


class ArchiveError(PrepareError):
    """An archive that cannot be fetched or used."""


class _Broken(ArchiveError):
    """A transfer that stopped half-way: worth another attempt."""


class _Other(ArchiveError):
    """A whole archive, but not the one that was asked for: kept, as the user may accept it."""


# -- the archive -----------------------------------------------------------------------------------


def check_archive(path, name, size=None, digest=""):
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
        raise ArchiveError(f"{name} is damaged or cut short ({error})") from None
    found = os.path.getsize(path)
    if size and found != size:
        raise _Other(f"{name} has {found:,} bytes, not {size:,}; --any-archive accepts it")
    if digest and sha256(path) != digest:
        raise _Other(f"{name} has SHA-256 {sha256(path)}, not --sha256 {digest}")


def download(urls, path, size=None, digest=""):
    """Fetch the archive to `path` from the first of `urls` that has it whole.

    A transfer that breaks off is resumed where the server allows it, now or in the next run; the
    file takes its name only when it is whole and checked. Raises ArchiveError with the reason of
    every address.
    """
    failures = []
    for url in urls:
        if not re.match(r"https?://", url):
            raise ArchiveError(
                f"--url {url} is no http:// or https:// address; a file is given by --archive"
            )
        say(f"fetching {url}")
        # one for each address, or they would overwrite each other's
        partial = f"{path}.{zlib.crc32(url.encode()):08x}.partial"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _fetch(url, partial)
                _check_fetched(partial, url, size, digest)
            except _Broken as error:
                failure = str(error)
                say(f"  {failure}")
                if attempt < ATTEMPTS:
                    time.sleep(WAIT)
            except ArchiveError as error:
                failure = str(error)
                say(f"  {failure}")
                break
            else:
                os.replace(partial, path)
                for rest in glob.glob(glob.escape(path) + ".*.partial*"):
                    os.remove(rest)
                say(f"  kept as {path}; for another preparation: --archive {path}")
                return
        failures.append(failure)
    raise ArchiveError(
        f"could not fetch the archive: {'; '.join(failures)}. Run the command again to go on, name "
        "another address by --url, or give "
        "--archive PATH, which may be de-en.tgz or the 2014-01.tgz of https://wit3.fbk.eu/2014-01"
    )


def _check_fetched(partial, url, size, digest):
    """check_archive for what was just fetched; rubbish is removed, lest it be resumed."""
    try:
        check_archive(partial, url, size, digest)
    except _Other:
        raise
    except ArchiveError:
        os.remove(partial)
        raise


def _state(partial):
    """What is known of a half-fetched file: its size and validator (the ETag or date that tells if
    it has changed)."""
    with contextlib.suppress(OSError, ValueError), open(
        partial + ".json", encoding="utf-8"
    ) as stream:
        return json.load(stream)
    return {}


def _fetch(url, partial):
    """Fetch `url` to the file `partial`, going on from what is there if that has not changed since.
    Raises ArchiveError, _Broken."""
    state = _state(partial)
    start = os.path.getsize(partial) if state.get("validator") and os.path.exists(partial) else 0
    if start and start == state.get("size"):
        return
    headers = {"User-Agent": f"fairseq-klang/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers.update({"Range": f"bytes={start}-", "If-Range": state["validator"]})
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # the range does not exist: the file has changed
            os.remove(partial)
            raise _Broken(f"{url}: the file has changed, start again") from None
        raise ArchiveError(f"{url}: HTTP {error.code} {error.reason}") from None
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # ValueError: an address that is none
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ArchiveError(f"{url}: {str(reason) or repr(reason)}") from None
    with contextlib.ExitStack() as stack:
        stack.enter_context(response)
        length = response.headers.get("Content-Length")
        if response.status == 206:
            told = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if not told or int(told.group(1)) != start:
                os.remove(partial)
                raise _Broken(
                    f"{url}: the server sent another part than was asked for, start again"
                )
            say(f"  going on after {start:,} bytes")
        else:
            start = 0
        size = int(length) + start if length and length.isdigit() else None
        stream = stack.enter_context(open(partial, "ab" if start else "wb"))
        if not start:
            tag = response.headers.get("ETag", "")
            validator = (
                tag if tag.startswith('"') else response.headers.get("Last-Modified")
            )  # a weak tag does not do for parts
            with open(partial + ".json", "w", encoding="utf-8") as record:
                json.dump({"size": size, "validator": validator}, record)
        bar = stack.enter_context(
            tqdm(
                total=size,
                initial=start,
                desc="  de-en.tgz",
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
            )
        )
        done = start
        while True:
            try:
                block = response.read(1 << 16)
            except (OSError, http.client.HTTPException) as error:
                raise _Broken(f"{url}: broke off after {done:,} bytes ({error!r})") from None
            if not block:
                break
            stream.write(block)
            done += len(block)
            bar.update(len(block))
    if size is not None and done != size:
        raise _Broken(f"{url}: broke off after {done:,} of {size:,} bytes")


def extract(archive, folder):
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


def _extract(tar, archive, wanted, folder):
    found = set()
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
        with tar.extractfile(member) as source, open(os.path.join(folder, name), "wb") as target:
            shutil.copyfileobj(source, target)
        found.add(name)
    return found


# -- its text --------------------------------------------------------------------------------------


def training_lines(path):
    """Yield the training sentences of a train.tags file: titles and descriptions of the talks
    count, other tagged lines do not."""
    for line in read_lines(path):
        if not any(tag in line for tag in ("<url>", "<talkid>", "<keywords>")):
            yield " ".join(re.sub("</?(title|description)>", "", line).split())


def segments(path):
    """Yield the sentences of a test set's .xml file; the typographic apostrophe becomes the plain
    one, as in the recipe."""
    for line in read_lines(path):
        if "<seg id" in line:
            line = re.sub(r'<seg id="[0-9]*">\s*', "", line)
            yield re.sub(r"\s*</seg>\s*", "", line).replace("\u2019", "'")


def keeps(source, target):
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


def split_of(number, fold=0):
    """The split of the number-th pair that cleaning keeps, counted from 1: every 23rd is
    validation."""
    return "valid" if number % FOLDS == fold else "train"


def published_counts(fold=0):
    """{split: pairs} that the published archive has in this fold."""
    total = PUBLISHED["train"] + PUBLISHED["valid"]
    valid = len(range(fold or FOLDS, total + 1, FOLDS))
    return {"train": total - valid, "valid": valid, "test": PUBLISHED["test"]}


def make_text(archive, folder, fold, workers=1):
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


def _make_text(archive, folder, fold, workers):
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
                stack.enter_context(
                    open(
                        os.path.join(folder, f"{split}.{lang}"), "w", encoding="utf-8", newline="\n"
                    )
                )
                for lang in LANGS
            ]
            for split in ("train", "valid")
        }
        inputs = [
            stack.enter_context(open(path, encoding="utf-8", newline="\n"))
            for path in paths["all"] + paths["tok"]
        ]
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


def _write(lines, path, mode="w"):
    """Write lines to a file; returns how many."""
    count = 0
    with open(path, mode, encoding="utf-8", newline="\n") as stream:
        for count, line in enumerate(lines, 1):  # noqa: B007
            stream.write(line + "\n")
    return count


# -- all of it -------------------------------------------------------------------------------------


def preset_options(preset, **changes):
    """The PrepareOptions of a preset with `changes`; tokens are escaped as in fairseq's recipe.
    Raises PrepareError."""
    if preset not in PRESETS:
        raise PrepareError(f"--preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    values = dict(PRESETS[preset], **changes)
    values.setdefault("escape", values.get("tokenizer", "moses") == "moses")
    return PrepareOptions(**values)


def prepare_iwslt14(
    out, options, *, archive=None, cache=None, urls=None, digest="", fold=0, any_archive=False
):
    """Prepare IWSLT14 German-English below the folder `out`; returns the content of
    OUT/prepare.json.

    options: PrepareOptions for the steps after the text is made. archive: path of de-en.tgz, or of
        2014-01.tgz; without
    it the archive is fetched from `urls` (default MIRRORS) into the folder `cache` (default `out`),
    unless it is there.
    digest: SHA-256 that it must have. fold: validation is every 23rd pair from this one, 0-22;
        fairseq's is 0.
    any_archive: go on where size or line counts are not the published ones.
    Raises PrepareError. The archive, OUT/text and every step of `prepare` are reused when they are
    there.
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
    if archive and not os.path.isfile(archive):
        raise PrepareError(f"--archive {archive} is no file; without --archive it is fetched")
    out = make_out(out)
    with hold(out, "--out"):
        return _prepare_held(out, options, archive, cache, urls, digest, fold, any_archive)


def _prepare_held(out, options, archive, cache, urls, digest, fold, any_archive):
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
                    stack.enter_context(hold(os.path.dirname(path), "--cache"))
                download(
                    urls or MIRRORS, path, None if urls or any_archive else ARCHIVE_BYTES, digest
                )
        elif urls and not archive:
            say(f"{path} is there, so that no --url is asked; delete it to fetch another")
        known = sha256(path)
    if digest and known != digest:
        hint = "" if archive else "; delete it to fetch another"
        raise ArchiveError(f"{path} has SHA-256 {known}, not --sha256 {digest}{hint}")

    def work(partial):
        try:
            check_archive(path, path)
            return make_text(path, partial, fold, options.workers)
        except ArchiveError as error:
            if archive:
                raise ArchiveError(f"{error}; give another --archive") from None
            os.replace(path, path + ".unusable")  # where it was, no other would ever be fetched
            raise ArchiveError(
                f"{error}; moved to {path}.unusable: run the command again, or with another --url"
            ) from None

    key = {"archive": known, "fold": fold}
    facts = finished_step(out, "text", key)
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
