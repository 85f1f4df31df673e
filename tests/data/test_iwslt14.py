"""IWSLT14: an archive of the published structure, made of our own sentences and served from
127.0.0.1, through every step."""

import collections
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_klang import cli
from fairseq_klang.data import download as downloading
from fairseq_klang.data import iwslt14 as module
from fairseq_klang.data import prepare as preparing
from fairseq_klang.data import subwords
from fairseq_klang.data.iwslt14 import (
    ArchiveError,
    check_archive,
    extract,
    fetch_archive,
    keeps,
    prepare_iwslt14,
    published_counts,
)
from fairseq_klang.data.options import PrepareError, PrepareOptions, preset_options
from fairseq_klang.data.text import text_inputs
from helpers.running import ROOT
from helpers.text import lines_of, pairs

# -- the archive --

GOOD = [
    (
        f"Der Brief Nr. {number} liegt hier, nicht dort.",
        f"Letter no. {number} lies here, not there.",
    )
    for number in range(1, 64)
]
# in the 23rd pair only, twice: its letters are merged where that pair is training text
RARE = "Quittenquark"
GOOD[22] = (f"Das ist {RARE} und {RARE}.", f"This is {RARE} and {RARE}.")
TALK = "A talk &amp; a walk"
BAD = [
    ("", "The other side is empty."),
    ("Kurz.", "This side has far more tokens than the other one."),
    (" ".join(["Wort"] * 176), " ".join(["word"] * 176)),
    ("x" * 1001 + " y", "A word of 1,001 letters"[:10]),
]
TEST_SIZES = (3, 2, 2, 2, 2)  # dev2010, TEDX.dev2012, tst2010, tst2011, tst2012


def held_out():
    """The 11 test pairs, in the order of the recipe."""
    return [(f"Wie geht\u2019s {german}", english) for german, english in pairs(sum(TEST_SIZES), 7)]


def members():
    """{name in the archive: text}."""
    texts = {}
    for side, lang in enumerate(("de", "en")):
        lines = [
            "<url>http://example.org/1</url>",
            "<keywords>talks, tests</keywords>",
            "<speaker>Somebody</speaker>",
            "<talkid>1</talkid>",
        ]
        lines += [f"<title>{TALK}</title>", f"<description>{GOOD[0][side]}</description>"]
        lines += [
            BAD[0][side],
            *(pair[side] for pair in GOOD[1:40]),
            *(bad[side] for bad in BAD[1:]),
            *(pair[side] for pair in GOOD[40:]),
        ]
        texts[f"de-en/train.tags.de-en.{lang}"] = "\n".join(lines) + "\n"
        rest = iter(held_out())
        for name, size in zip(
            ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"), TEST_SIZES
        ):
            body = "".join(
                f'<seg id="{number}"> {next(rest)[side]} </seg>\n' for number in range(1, size + 1)
            )
            texts[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = (
                f'<?xml version="1.0"?>\n<doc docid="1">\n<title>{TALK}</title>\n{body}</doc>\n'
            )
    texts["de-en/README"] = "not needed"
    return texts


# What the recipe keeps: <speaker>, <title> and <description> lines are text, the other tagged lines
# are not.
KEPT = [("<speaker>Somebody</speaker>",) * 2, (TALK, TALK), *GOOD]
COUNTS = {"train": 63, "valid": 2, "test": 11}  # 65 kept pairs: numbers 23 and 46 are validation


def make_archive(path, change=None, links=()):
    texts = members()
    (change or (lambda texts: None))(texts)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts.items():
            data = text if isinstance(text, bytes) else text.encode("utf-8")
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return str(path)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_archive(tmp_path_factory.mktemp("archive") / "de-en.tgz")


@pytest.fixture
def published(monkeypatch):
    """The archive of the tests counts as the published one."""
    monkeypatch.setattr(module, "PUBLISHED", COUNTS)


@pytest.fixture
def no_bin(monkeypatch):
    """Leave out fairseq-preprocess, which takes seconds."""
    monkeypatch.setattr(
        preparing._Job,
        "bin",
        lambda job, folder: {"vocabulary": {"de": 0, "en": 0}, "dictionaries": {}},
    )


def klang(capsys, *arguments):
    """(exit status, stdout, stderr) of `klang prepare iwslt14`."""
    capsys.readouterr()
    status = cli.main(["prepare", "iwslt14", *map(str, arguments)])
    return (status, *capsys.readouterr())


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


# -- what comes out --


@pytest.mark.slow
def test_from_archive_to_fairseq(archive, published, tmp_path, capsys):
    status, out, _ = klang(
        capsys, "--archive", archive, "--out", tmp_path, "--preset", "bpe10k", "--vocab-size", 200
    )
    assert status == 0 and "(63 training pairs" in out
    assert visible(tmp_path) == ["bin", "prepare.json", "raw", "subword", "text", "tok"]
    assert sorted(os.listdir(tmp_path / "text")) == sorted(
        [".step.json"] + [f"{split}.{lang}" for split in COUNTS for lang in ("de", "en")]
    )
    expected = {
        "train": [pair for number, pair in enumerate(KEPT, 1) if number % 23],
        "valid": [KEPT[22], KEPT[45]],
        "test": [(german.replace("\u2019", "'"), english) for german, english in held_out()],
    }
    for split, chosen in expected.items():
        for side, lang in enumerate(("de", "en")):
            assert lines_of(tmp_path / "raw" / f"{split}.{lang}") == [
                pair[side] for pair in chosen
            ], (split, lang)
    # tokenizer.perl's rules: an entity's & is escaped once more, a German apostrophe stands alone,
    # the full stop after Nr. stays
    assert lines_of(tmp_path / "tok" / "train.en")[1] == "a talk &amp; amp ; a walk"
    assert (
        lines_of(tmp_path / "tok" / "test.de")[0].startswith("wie geht &apos; s der ")
        and " nr. 0 " in lines_of(tmp_path / "tok" / "test.de")[0]
    )
    report = json.loads((tmp_path / "prepare.json").read_text(encoding="utf-8"))
    with open(archive, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    assert report["source"] == {
        "archive": archive,
        "sha256": digest,
        "fold": 0,
        "cleaning": {"read": 69, "blank": 1, "dropped": 3},
        "published_counts": True,
    }
    assert report["options"]["dictionary"] == "separate" and report["options"]["escape"] is True
    assert report["dictionaries"]["dict.de.txt"] != report["dictionaries"]["dict.en.txt"]


@pytest.mark.parametrize(
    "preset, subword, size, dictionary",
    [
        ("bpe8k", "bpe", 8000, "joined"),
        ("bpe32k", "bpe", 32000, "joined"),
        ("bpe10k", "bpe", 10000, "separate"),
        ("sentencepiece", "sentencepiece", 8000, "joined"),
        ("word", "word", 56652, "joined"),
    ],
)
def test_presets(preset, subword, size, dictionary):
    options = preset_options(preset)
    assert (options.subword, options.vocab_size, options.dictionary) == (subword, size, dictionary)
    assert options.escape and options.tokenizer == "moses" and not options.keep_case
    assert preset_options(preset, vocab_size=9).vocab_size == 9
    assert preset_options(preset, tokenizer="none").escape is False
    with pytest.raises(PrepareError, match="--preset is 'bpe9k'; it must be one of bpe8k, bpe32k"):
        preset_options("bpe9k")


def test_sentencepiece_preset_joins_both_languages(archive, published, no_bin, tmp_path):
    report = prepare_iwslt14(
        tmp_path, preset_options("sentencepiece", vocab_size=60), archive=archive
    )
    assert report["pieces"] == 60 and "\u2581" in lines_of(tmp_path / "subword" / "test.en")[0]


def test_other_direction(archive, published, no_bin, tmp_path):
    prepare_iwslt14(
        tmp_path, preset_options("word", source_lang="en", target_lang="de"), archive=archive
    )
    assert lines_of(tmp_path / "raw" / "valid.de") == [KEPT[22][0], KEPT[45][0]]
    with pytest.raises(PrepareError, match="-s de -t fr is not"):
        prepare_iwslt14(tmp_path, preset_options("word", target_lang="fr"), archive=archive)


# -- the rules of the recipe --


def test_tagged_lines(tmp_path):
    (tmp_path / "x").write_text(
        "<url>u</url>\n<talkid>1</talkid>\n<keywords>k</keywords>\n<speaker>s</speaker>\n"
        "<title> A\u2019b  </title>\n<description>TED Talk: c</description>\n\n a <url> in the "
        "middle\nd\u2028e\n",
        encoding="utf-8",
    )
    assert list(module.training_lines(str(tmp_path / "x"))) == [
        "<speaker>s</speaker>",
        "A\u2019b",
        "TED Talk: c",
        "",
        "d e",
    ]


def test_segments(tmp_path):
    (tmp_path / "x").write_text(
        '<doc>\n<seg id="1"> It\u2019s &lt;here&gt; </seg>\n <seg id="23">b</seg> \n<hl>c</hl>\n',
        encoding="utf-8",
    )
    assert list(module.segments(str(tmp_path / "x"))) == ["It's &lt;here&gt;", "b"]


def test_cleaning_at_its_limits():
    def words(count):
        return " ".join("a" * count)

    assert (
        keeps(words(1), words(1))
        and keeps(words(175), words(175))
        and not keeps(words(176), words(175))
    )
    assert keeps(words(3), words(2)) and keeps(
        words(100), words(150)
    )  # the ratio 1.5 itself is kept
    assert (
        not keeps(words(100), words(151)) and not keeps(words(4), words(2)) and not keeps("", "a")
    )
    assert keeps("a" * 1000, "b") and not keeps("a" * 1001, "b")


def test_published_counts():
    # 160,239 / 7,283 / 6,750: what fairseq's prepare-iwslt14.sh leaves, as papers on IWSLT14
    # German-English report it
    assert published_counts(0) == {"train": 160239, "valid": 7283, "test": 6750}
    every = collections.Counter(number % 23 for number in range(1, 160239 + 7283 + 1))
    for fold in range(23):
        assert published_counts(fold) == {
            "train": 167522 - every[fold],
            "valid": every[fold],
            "test": 6750,
        }
    assert [module.split_of(number) for number in (1, 22, 23, 24, 46)] == [
        "train",
        "train",
        "valid",
        "train",
        "valid",
    ]
    assert [module.split_of(number, 1) for number in (1, 23, 24)] == ["valid", "train", "valid"]


# -- folds --


def test_fold_moves_validation_and_refits_bpe(archive, no_bin, tmp_path):
    codes = {}
    for fold in (0, 3):
        out = tmp_path / str(fold)
        prepare_iwslt14(
            out,
            preset_options("bpe8k", vocab_size=500),
            archive=archive,
            fold=fold,
            any_archive=True,
        )
        assert lines_of(out / "raw" / "valid.en") == [
            pair[1] for number, pair in enumerate(KEPT, 1) if number % 23 == fold
        ]
        codes[fold] = (out / "subword" / "codes").read_bytes()
        subwords.learn_bpe(
            [str(out / "tok" / f"train.{lang}") for lang in ("de", "en")],
            str(tmp_path / "codes"),
            500,
        )
        assert (tmp_path / "codes").read_bytes() == codes[fold]
    # The rare word is pair 23 + 2 of those kept: training text in fold 0, validation in fold 2
    assert b"quittenquark</w>" in codes[0].replace(b" ", b"")
    prepare_iwslt14(
        tmp_path / "2",
        preset_options("bpe8k", vocab_size=500),
        archive=archive,
        fold=2,
        any_archive=True,
    )
    assert b"quittenquark</w>" not in (tmp_path / "2" / "subword" / "codes").read_bytes().replace(
        b" ", b""
    )
    with pytest.raises(
        PrepareError, match="was prepared with --fold 0, now it is 5; choose another --out"
    ):
        prepare_iwslt14(
            tmp_path / "0",
            preset_options("bpe8k", vocab_size=500),
            archive=archive,
            fold=5,
            any_archive=True,
        )


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--fold", 23], "--fold is 23; it must be 0 to 22"),
        (["--fold", -1], "--fold is -1"),
        (["--sha256", "12ab"], "--sha256 is '12ab'; it must be 64"),
        (["--sha256", "0" * 64], f"not --sha256 {'0' * 64}"),
        (["--archive", "nowhere.tgz"], "--archive nowhere.tgz is no file"),
        (["--url", "ftp://127.0.0.1/x"], "--url ftp://127.0.0.1/x is no http"),
        (
            ["--url", "http://[::bad/x"],
            "could not fetch the archive: http://[::bad/x: Invalid IPv6 URL",
        ),
        (
            ["--url", "http://127.0.0.1:many/x"],
            "could not fetch the archive: http://127.0.0.1:many/x: nonnumeric port",
        ),
        (
            ["--url", "http://127.0.0.1:1/\u00e4"],
            "could not fetch the archive: http://127.0.0.1:1/\u00e4: 'ascii' codec",
        ),
        (["--escape", "--tokenizer", "none"], "--escape needs --tokenizer moses"),
        (["--word-cut", "threshold"], "--word-cut threshold needs --subword word"),
    ],
)
def test_bad_options_end_in_one_line(archive, tmp_path, capsys, arguments, words):
    given = [] if "--archive" in arguments or "--url" in arguments else ["--archive", archive]
    status, out, err = klang(capsys, "--out", tmp_path / "out", *given, *arguments)
    last = err.splitlines()[-1]
    assert (
        (status, out) == (2, "")
        and last.startswith("klang: error: ")
        and words in last
        and "Traceback" not in err
    )


# -- counts --


def test_other_counts_are_refused_and_can_be_accepted(archive, no_bin, tmp_path, capsys):
    arguments = ["--archive", archive, "--out", tmp_path, "--preset", "word"]
    status, _, err = klang(capsys, *arguments)
    assert status == 2 and err.splitlines()[-1].startswith("klang: error: ")
    assert (
        "63 / 2 / 11 pairs (train / valid / test) after cleaning, not the published 160,239 / "
        "7,283 / 6,750" in err.splitlines()[-1]
    )
    assert "--any-archive goes on" in err.splitlines()[-1] and visible(tmp_path) == ["text"]
    before = os.stat(tmp_path / "text").st_mtime_ns
    status, _, err = klang(capsys, *arguments, "--any-archive")
    assert (
        status == 0
        and "63 / 2 / 11 pairs" in err
        and os.stat(tmp_path / "text").st_mtime_ns == before
    )
    assert (
        json.loads((tmp_path / "prepare.json").read_text())["source"]["published_counts"] is False
    )


def test_an_empty_test_sentence_is_missed(published, tmp_path):
    def empty(texts):
        name = "de-en/IWSLT14.TED.tst2011.de-en.en.xml"
        texts[name] = re.sub('<seg id="1">.*?</seg>', '<seg id="1"> </seg>', texts[name])

    with pytest.raises(ArchiveError, match="63 / 2 / 10 pairs"):
        prepare_iwslt14(
            tmp_path / "out",
            preset_options("word"),
            archive=make_archive(tmp_path / "x.tgz", empty),
        )


@pytest.mark.parametrize(
    "name, words",
    [
        ("de-en/train.tags.de-en.en", "tags.de has 69 lines but .*tags.en has 68"),
        (
            "de-en/IWSLT14.TEDX.dev2012.de-en.en.xml",
            "TEDX.dev2012.de-en has 2 sentences in de but 1 in en",
        ),
    ],
)
def test_sides_of_unequal_length(tmp_path, name, words):
    def shorten(texts):
        lines = texts[name].splitlines(True)
        del lines[-2]
        texts[name] = "".join(lines)

    with pytest.raises(PrepareError, match=words):
        prepare_iwslt14(
            tmp_path / "out",
            preset_options("word"),
            archive=make_archive(tmp_path / "x.tgz", shorten),
        )
    assert visible(tmp_path / "out") == []


# -- unsafe and wrong archives --


def add(name):
    return lambda texts: texts.update({name: "evil"})


def test_unsafe_names_are_refused(tmp_path):
    for name in ("../evil", "de-en/../../evil", "/evil", "de-en/sub/../README"):
        folder = tmp_path / "inner" / "folder"
        folder.mkdir(parents=True, exist_ok=True)
        with pytest.raises(
            ArchiveError, match=re.escape(f"is unsafe: it holds a file named {name!r}")
        ):
            extract(make_archive(tmp_path / "x.tgz", add(name)), str(folder))
        assert not [found for found in tmp_path.rglob("evil")] and not os.path.exists("/evil")


def test_links_are_refused(tmp_path):
    (tmp_path / "secret").write_text("secret")
    name = "de-en/train.tags.de-en.en"
    path = make_archive(
        tmp_path / "x.tgz", lambda texts: texts.pop(name), links=[(name, str(tmp_path / "secret"))]
    )
    with pytest.raises(ArchiveError, match="train.tags.de-en.en is a link or special file"):
        extract(path, str(tmp_path))


def test_missing_members_are_named(tmp_path):
    def drop(texts):
        del texts["de-en/IWSLT14.TEDX.dev2012.de-en.de.xml"]

    with pytest.raises(ArchiveError, match="it lacks de-en/IWSLT14.TEDX.dev2012.de-en.de.xml$"):
        extract(make_archive(tmp_path / "x.tgz", drop), str(tmp_path))


def test_archive_of_all_languages(archive, tmp_path):
    with open(archive, "rb") as stream:
        inner = stream.read()
    path = tmp_path / "2014-01.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (
            ("2014-01/texts/ar/en/ar-en.tgz", b"x"),
            ("2014-01/texts/de/en/de-en.tgz", inner),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "out").mkdir()
    extract(str(path), str(tmp_path / "out"))
    assert (tmp_path / "out" / "train.tags.de-en.de").read_text(encoding="utf-8") == members()[
        "de-en/train.tags.de-en.de"
    ]
    assert len(os.listdir(tmp_path / "out")) == 12


PAGE = b"\n<!DOCTYPE html><html><title>Virus scan warning</title></html>"


@pytest.mark.parametrize(
    "content, words",
    [
        (PAGE, "is a web page, not the archive"),
        (b"<body>Please log in</body>", "is a web page, not the archive"),
        (b"hello", "is not a .tgz file"),
        (b"", "is not a .tgz file"),
        (gzip.compress(os.urandom(3000))[:-500], "is damaged or cut short"),
        (gzip.compress(b"no tar at all" * 100, mtime=0), "is no tar archive"),
    ],
)
def test_files_that_are_no_archive(tmp_path, content, words):
    (tmp_path / "x.tgz").write_bytes(content)
    with pytest.raises(ArchiveError, match=words):
        prepare_iwslt14(
            tmp_path / "out",
            preset_options("word"),
            archive=str(tmp_path / "x.tgz"),
            any_archive=True,
        )
    assert visible(tmp_path / "out") == []


def test_rubbish_in_the_cache_is_named_and_moved_aside(tmp_path, capsys):
    path = tmp_path / "de-en.tgz"
    path.write_bytes(PAGE)
    status, _, err = klang(capsys, "--out", tmp_path / "out", "--cache", tmp_path)
    assert status == 2 and err.splitlines()[-1] == (
        f"klang: error: {path} is a web page, not the archive; moved to {path}.unusable: run the "
        "command again, or with another --url"
    )
    assert visible(tmp_path) == ["de-en.tgz.unusable", "out"]


def test_size_and_digest(archive):
    size = os.path.getsize(archive)
    check_archive(archive, "x", size)
    with pytest.raises(
        ArchiveError, match=f"x has {size:,} bytes, not {size + 1:,}; --any-archive accepts it"
    ):
        check_archive(archive, "x", size + 1)


# -- downloads --


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` under any name; the first part of the path says how: whole, page, lost, or
    half, bare or stall the first time."""

    daemon_threads = True

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.times = content, collections.Counter()
        self.seen, self.release = [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, way):
        return f"http://127.0.0.1:{self.server_address[1]}/{way}/de-en.tgz"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, way = self.server, self.path.split("/")[1]
        server.times[way] += 1
        if way == "lost":
            return self.send_error(404)
        content = PAGE if way == "page" else server.content
        self.send_response(200)
        if way != "bare":  # the size is not told: the end of the connection is the end of the file
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if way in ("half", "bare", "stall") and server.times[way] == 1:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            server.seen.append(way)
            if way == "stall":
                server.release.wait(20)
        else:
            self.wfile.write(content)


@pytest.fixture
def server(archive, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr(downloading, "WAIT", 0)
    with open(archive, "rb") as stream:
        server = Server(stream.read())
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()


def fetched(server, path):
    """Whether the archive is there, and nothing half beside it."""
    with open(path, "rb") as stream:
        return stream.read() == server.content and not os.path.exists(f"{path}.partial")


def test_whole_run_from_a_server(server, published, no_bin, tmp_path, capsys):
    arguments = [
        "--url",
        server.url("lost"),
        "--url",
        server.url("whole"),
        "--cache",
        tmp_path / "cache",
        "--preset",
        "word",
    ]
    assert klang(capsys, *arguments, "--out", tmp_path / "a")[0] == 0
    assert visible(tmp_path / "cache") == ["de-en.tgz"]
    source = json.loads((tmp_path / "a" / "prepare.json").read_text())["source"]
    assert source["sha256"] == hashlib.sha256(server.content).hexdigest()
    # the second preparation takes the archive from the cache, and a repeated one needs no archive
    # at all
    status, _, err = klang(
        capsys, *arguments, "--out", tmp_path / "b", "--fold", 1, "--any-archive"
    )
    assert status == 0 and "is there, so that no --url is asked" in err
    os.remove(tmp_path / "cache" / "de-en.tgz")
    status, _, err = klang(
        capsys, *arguments, "--out", tmp_path / "a", "--sha256", source["sha256"].upper()
    )
    assert status == 0 and "already prepared" in err
    assert server.times == {"lost": 1, "whole": 1}


def unequal(texts):
    name = "de-en/IWSLT14.TEDX.dev2012.de-en.en.xml"
    texts[name] = texts[name].replace("<seg id", "<no id", 1)


def latin(texts):
    name = "de-en/train.tags.de-en.de"
    texts[name] = texts[name].replace(TALK, "\u00fcber").encode("latin-1", "replace")


@pytest.mark.parametrize(
    "change, links, words",
    [
        (
            lambda texts: texts.update({"../evil": "evil"}),
            (),
            "is unsafe: it holds a file named '../evil'",
        ),
        (
            lambda texts: texts.pop("de-en/train.tags.de-en.en"),
            (),
            "it lacks de-en/train.tags.de-en.en",
        ),
        (
            lambda texts: texts.pop("de-en/train.tags.de-en.en"),
            [("de-en/train.tags.de-en.en", "/etc/hostname")],
            "is a link or special file",
        ),
        (unequal, (), "TEDX.dev2012.de-en has 2 sentences in de but 1 in en"),
        (
            latin,
            (),
            "de-en.tgz: train.tags.de-en.de line 5 is not UTF-8",
        ),  # the archive and its member, no file of ours
        (None, (), "is no tar archive"),
    ],
)
def test_a_fetched_archive_of_no_use_does_not_stay(
    server, published, no_bin, tmp_path, capsys, change, links, words
):
    good = server.content
    if change:
        with open(make_archive(tmp_path / "x.tgz", change, links), "rb") as stream:
            server.content = stream.read()
    else:
        server.content = gzip.compress(PAGE)
    path = tmp_path / "cache" / "de-en.tgz"
    arguments = ["--out", tmp_path / "out", "--cache", tmp_path / "cache", "--preset", "word"]
    status, _, err = klang(capsys, *arguments, "--url", server.url("whole"))
    last = err.splitlines()[-1]
    assert (
        status == 2
        and words in last
        and f"moved to {path}.unusable: run the command again" in last
        and ".partial" not in last
    )
    assert visible(tmp_path / "cache") == ["de-en.tgz.unusable"]
    server.content = good
    assert (
        klang(capsys, *arguments, "--url", server.url("again"))[0] == 0
    )  # the other address is asked
    assert path.read_bytes() == good and server.times["again"] == 1


@pytest.mark.parametrize("way", ["half", "bare", "stall"])
def test_a_broken_transfer_is_tried_again(server, tmp_path, monkeypatch, capsys, way):
    """Cut with the size told, cut without, and no byte more while the line is open."""
    monkeypatch.setattr(downloading, "TIMEOUT", 0.5)
    path = str(tmp_path / "de-en.tgz")
    fetch_archive([server.url(way)], path)
    assert server.times == {way: 2} and fetched(server, path)
    told = "broke off" if way == "stall" else "damaged or cut short"
    assert told in capsys.readouterr().err


def test_the_next_address_is_asked_when_one_breaks_for_good(server, tmp_path, monkeypatch):
    path = str(tmp_path / "de-en.tgz")
    with monkeypatch.context() as patch:
        patch.setattr(downloading, "ATTEMPTS", 1)
        with pytest.raises(
            ArchiveError, match="cut short .*HTTP 404.*Run the command again"
        ) as caught:
            fetch_archive([server.url("half"), server.url("lost")], path)
        assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []
        fetch_archive([server.url("lost"), server.url("whole")], path)
    assert fetched(server, path)


def test_a_web_page_is_no_archive(server, tmp_path):
    path = str(tmp_path / "de-en.tgz")
    with pytest.raises(ArchiveError, match="/page/de-en.tgz is a web page, not the archive"):
        fetch_archive([server.url("page")], path)
    assert not os.path.exists(path)
    fetch_archive([server.url("page"), server.url("whole")], path)
    assert fetched(server, path)


def test_another_size_or_digest_is_not_taken(server, tmp_path):
    path = str(tmp_path / "de-en.tgz")
    with pytest.raises(ArchiveError, match="not 19,982,877; --any-archive accepts it"):
        fetch_archive([server.url("whole")], path, module.ARCHIVE_BYTES)
    with pytest.raises(ArchiveError, match="not --sha256 00"):
        fetch_archive([server.url("whole")], path, None, "0" * 64)
    assert os.listdir(tmp_path) == []
    fetch_archive([server.url("whole")], path, None, hashlib.sha256(server.content).hexdigest())
    assert fetched(server, path)


def test_nobody_answers(server, tmp_path, capsys):
    url = server.url("whole")
    server.shutdown()
    server.server_close()
    status, _, err = klang(capsys, "--url", url, "--out", tmp_path)
    last = err.splitlines()[-1]
    assert (
        status == 2
        and last.startswith(f"klang: error: could not fetch the archive: {url}: ")
        and "refused" in last
    )
    assert "--archive PATH" in last and visible(tmp_path) == []


def test_killed_in_the_middle_of_a_download(server, published, no_bin, tmp_path, capsys):
    arguments = [
        "prepare",
        "iwslt14",
        "--url",
        server.url("stall"),
        "--out",
        str(tmp_path / "out"),
        "--preset",
        "word",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "fairseq_klang.cli", *arguments], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        while not server.seen:
            assert process.poll() is None
            time.sleep(0.05)
        # Another one does not go into the same folders meanwhile.
        for more in ([], ["--cache", tmp_path / "out", "--out", tmp_path / "other"]):
            status, _, err = klang(capsys, *arguments[2:], *more)
            line = (
                f"klang: error: {tmp_path / 'out'} is in use by another process; wait for it, or "
                "end it\n"
            )
            assert (status, err) == (2, line)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "out" / "de-en.tgz").exists()
    assert cli.main(arguments) == 0 and fetched(server, tmp_path / "out" / "de-en.tgz")


# -- stopped and repeated --


def test_resumes_after_a_stop(archive, published, no_bin, tmp_path, monkeypatch):
    for name in ("extract", "tokenize_file", "keeps"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                prepare_iwslt14(tmp_path, preset_options("word"), archive=archive)
        assert visible(tmp_path) == [] and os.listdir(tmp_path) != []
    with monkeypatch.context() as patch:
        patch.setattr(
            preparing._Job, "tok", lambda job, folder: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            prepare_iwslt14(tmp_path, preset_options("word"), archive=archive)
    assert visible(tmp_path) == ["raw", "text"]
    monkeypatch.setattr(module, "make_text", None)  # is not made again
    assert (
        prepare_iwslt14(tmp_path, preset_options("word"), archive=archive)["lines"]["train"]["kept"]
        == 63
    )
    assert visible(tmp_path) == ["bin", "prepare.json", "raw", "subword", "text", "tok"]


def test_another_archive_is_refused(archive, published, no_bin, tmp_path):
    prepare_iwslt14(tmp_path / "out", preset_options("word"), archive=archive)
    with pytest.raises(PrepareError, match=r"was prepared with --archive [0-9a-f]{64}, now it is"):
        prepare_iwslt14(
            tmp_path / "out",
            preset_options("word"),
            archive=make_archive(tmp_path / "x.tgz", add("de-en/more")),
        )


def test_damaged_text_is_made_again(server, published, no_bin, tmp_path, capsys):
    arguments = ["--out", tmp_path, "--preset", "word", "--url", server.url("whole")]
    assert klang(capsys, *arguments)[0] == 0
    before = lines_of(tmp_path / "text" / "valid.en")
    (tmp_path / "text" / "valid.en").unlink()
    (tmp_path / "de-en.tgz").unlink()  # so that it is fetched again, too
    status, _, err = klang(capsys, *arguments)
    assert status == 0 and f"{tmp_path / 'text'} is damaged: valid.en is gone; made again" in err
    assert lines_of(tmp_path / "text" / "valid.en") == before and "already prepared" in err


def test_prepare_sh_shows_the_options(tmp_path):
    (tmp_path / "klang").write_text('#!/bin/sh\necho klang "$@"\n')
    (tmp_path / "klang").chmod(0o755)
    command = ["bash", os.path.join(ROOT, "examples", "iwslt14", "prepare.sh")]
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    shown = subprocess.run(
        [*command, "--help"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    ).stdout
    assert "bpe8k|bpe32k" in shown and shown.endswith("klang prepare iwslt14 --help\n")
    assert subprocess.run(command, stderr=subprocess.DEVNULL, env=environment).returncode == 2


# -- the threshold of the word vocabulary --


@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 9), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_threshold_is_the_closest(counts, size):
    threshold, words = subwords.frequency_threshold(counts, size)
    assert words == sum(count >= threshold for count in counts.values())
    sizes = {
        least: sum(count >= least for count in counts.values())
        for least in range(1, max(counts.values()) + 1)
    }
    assert abs(words - size) == min(abs(found - size) for found in sizes.values())
    assert words == max(found for found in sizes.values() if abs(found - size) == abs(words - size))


@pytest.mark.slow
@pytest.mark.parametrize("dictionary, size", [("joined", 3), ("separate", 2)])
def test_words_above_the_threshold(tmp_path, dictionary, size):
    for lang, text in (("de", "a a a b b c\na b d\n"), ("en", "a x x y\nx y z\n")):
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.{lang}").write_text(text)
    inputs = text_inputs(*(tmp_path / split for split in ("train", "valid")), [tmp_path / "test"])
    options = dict(subword="word", vocab_size=size, tokenizer="none", dictionary=dictionary)
    report = preparing.prepare(
        inputs, tmp_path / "out", PrepareOptions(word_cut="threshold", **options)
    )
    # by hand: de has a 4, b 3, c 1, d 1; en has x 3, y 2, a 1, z 1; together a 5, b 3, x 3, y 2, c
    # 1, d 1, z 1
    expected = {
        "joined": ({"de": 3, "en": 3}, "abx", "abx"),
        "separate": ({"de": 3, "en": 2}, "ab", "xy"),
    }[dictionary]
    assert report["threshold"] == expected[0]
    for lang, words in zip(("de", "en"), expected[1:]):
        kept = [line.split()[0] for line in lines_of(tmp_path / "out" / "bin" / f"dict.{lang}.txt")]
        assert sorted(word for word in kept if not word.startswith("madeupword")) == list(words)
    with pytest.raises(
        PrepareError, match="was prepared with --word-cut threshold, now it is exact"
    ):
        preparing.prepare(inputs, tmp_path / "out", PrepareOptions(**options))


def test_a_folder_older_than_an_option_is_reused(archive, published, no_bin, tmp_path):
    options = preset_options("bpe8k", vocab_size=60)
    report = prepare_iwslt14(tmp_path, options, archive=archive)
    record = tmp_path / "bin" / ".step.json"
    content = json.loads(record.read_text())
    del content["key"]["word_cut"]
    record.write_text(json.dumps(content))
    assert prepare_iwslt14(tmp_path, options, archive=archive) == report


def test_threshold_needs_a_size():
    with pytest.raises(PrepareError, match="--vocab-size is 0; it must be 1 or more"):
        PrepareOptions(subword="word", word_cut="threshold", vocab_size=0)
