"""Preparing text: what is checked, what comes out, and what a stopped or repeated run leaves."""

import collections
import gzip
import hashlib
import json
import os
import shutil
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_klang.analysis.tokens import moses_detokenizer, moses_tokenizer, unescape
from fairseq_klang.data import prepare as module
from fairseq_klang.data import subwords, text
from fairseq_klang.data.options import STEPS, PrepareError, PrepareOptions
from fairseq_klang.data.prepare import prepare
from fairseq_klang.data.text import multi30k_inputs, text_inputs
from helpers.damage import damaged_json
from helpers.text import lines_of, pairs


def write_pairs(prefix, lines, packed=False):
    for lang, side in zip(("de", "en"), zip(*lines)):
        text = "".join(line + "\n" for line in side).encode("utf-8")
        if packed:
            with gzip.open(f"{prefix}.{lang}.gz", "wb") as stream:
                stream.write(text)
        else:
            with open(f"{prefix}.{lang}", "wb") as stream:
                stream.write(text)


# What the step bin tells, for tests that leave it out: fairseq-preprocess takes seconds.
BINARISED = {"vocabulary": {"de": 0, "en": 0}, "dictionaries": {}}
SIZES = {"train": 60, "valid": 9, "test": 5, "test1": 3}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for seed, (split, count) in enumerate(SIZES.items()):
        write_pairs(folder / split, pairs(count, seed), packed=split == "test")
    return text_inputs(folder / "train", folder / "valid", [folder / "test", folder / "test1"])


@pytest.fixture(scope="module")
def prepared(inputs, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "with a space"
    return out, prepare(inputs, out, PrepareOptions(vocab_size=60))


def binary_lines(out, split, lang):
    """The sentences that fairseq reads back."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    words = Dictionary.load(str(out / "bin" / f"dict.{lang}.txt"))
    return [
        words.string(ids) for ids in MMapIndexedDataset(str(out / "bin" / f"{split}.de-en.{lang}"))
    ]


# -- what comes out --


def test_bpe_layout_and_content(prepared):
    out, report = prepared
    for split, count in SIZES.items():
        for lang, side in zip(("de", "en"), zip(*pairs(count, list(SIZES).index(split)))):
            assert lines_of(out / "raw" / f"{split}.{lang}") == list(side)
            tokens = lines_of(out / "tok" / f"{split}.{lang}")
            assert len(tokens) == count and tokens == [line.lower() for line in tokens]
            units = lines_of(out / "subword" / f"{split}.{lang}")
            assert [line.replace("@@ ", "") for line in units] == tokens
            if split == "train":
                assert binary_lines(out, split, lang) == units
    # Moses' tokenizer.perl by its rules: the comma and question mark split off, "Nr." before a
    # number stays whole
    assert (
        lines_of(out / "tok" / "test.de")[0].startswith("der ")
        and " nr. 0 " in lines_of(out / "tok" / "test.de")[0]
    )
    assert lines_of(out / "tok" / "test.en")[0].endswith(", or doesn 't it ?")
    assert report["lines"]["train"] == {"read": 60, "dropped": 0, "kept": 60}
    assert report["merges"] == len(lines_of(out / "subword" / "codes")) - 1 == 60


def test_summary_names_inputs_versions_and_dictionaries(prepared, inputs):
    out, report = prepared
    assert json.loads((out / "prepare.json").read_text(encoding="utf-8")) == report
    path = f"{inputs['test']}.de.gz"
    with open(path, "rb") as stream:
        assert report["inputs"]["test"]["de"] == {
            "path": path,
            "sha256": hashlib.sha256(stream.read()).hexdigest(),
        }
    content = (out / "bin" / "dict.en.txt").read_bytes()
    assert report["dictionaries"]["dict.en.txt"] == hashlib.sha256(content).hexdigest()
    assert content == (out / "bin" / "dict.de.txt").read_bytes()  # joined
    assert (
        report["vocabulary"]["en"] == len(content.splitlines()) + 4
    )  # fairseq's special symbols are not in the file
    assert (
        report["options"]["vocab_size"] == 60
        and report["versions"]["sacremoses"]
        and report["versions"]["python"]
    )


def test_bpe_is_learned_on_train_only(inputs, prepared, tmp_path):
    changed = dict(inputs, test=str(tmp_path / "other"))
    write_pairs(tmp_path / "other", [("zzzz zzzz zzzz zzzz", "zzzz zzzz zzzz zzzz")] * 50)
    job = module._Job(
        PrepareOptions(vocab_size=60),
        {
            split: [text.find_text(str(prefix), lang) for lang in ("de", "en")]
            for split, prefix in changed.items()
        },
        str(tmp_path),
    )
    for step in ("raw", "tok", "subword"):
        (tmp_path / step).mkdir()
        getattr(job, step)(str(tmp_path / step))
    assert (tmp_path / "subword" / "codes").read_bytes() == (
        prepared[0] / "subword" / "codes"
    ).read_bytes()


@pytest.mark.slow
def test_sentencepiece(inputs, tmp_path):
    out = tmp_path / "out"
    report = prepare(
        inputs,
        out,
        PrepareOptions(subword="sentencepiece", vocab_size=60, tokenizer="none", keep_case=True),
    )
    assert report["pieces"] == 60 and (out / "subword" / "spm.model").exists()
    for lang in ("de", "en"):
        units = lines_of(out / "subword" / f"valid.{lang}")
        assert [line.replace(" ", "").replace("\u2581", " ").strip() for line in units] == lines_of(
            out / "raw" / f"valid.{lang}"
        )
        assert all(
            len(line.split()) > len(line.replace(" ", "").split("\u2581")) - 1 for line in units
        )


@pytest.mark.slow
def test_words_keeps_the_most_frequent(inputs, tmp_path):
    out = tmp_path / "out"
    report = prepare(
        inputs, out, PrepareOptions(subword="word", vocab_size=8, dictionary="separate")
    )
    for lang in ("de", "en"):
        assert lines_of(out / "subword" / f"train.{lang}") == lines_of(
            out / "tok" / f"train.{lang}"
        )
        counts = collections.Counter(" ".join(lines_of(out / "tok" / f"train.{lang}")).split())
        kept = {
            line.split()[0]: int(line.split()[1])
            for line in lines_of(out / "bin" / f"dict.{lang}.txt")
            if not line.startswith("madeupword")
        }
        assert len(kept) == 8 and all(counts[word] == count for word, count in kept.items())
        assert sorted(kept.values()) == sorted(count for _, count in counts.most_common(8))
        assert (
            report["vocabulary"][lang] == 16
        )  # 8 words, 4 specials, padded by fairseq to a multiple of 8


def test_workers_give_the_same_text(inputs, prepared, tmp_path):
    path = str(prepared[0] / "raw" / "train.de")
    text.tokenize_file(path, str(tmp_path / "two"), "de", PrepareOptions(workers=2))
    assert (tmp_path / "two").read_bytes() == (prepared[0] / "tok" / "train.de").read_bytes()


def test_escape_writes_entities():
    escaped = text.tokenizer("en", PrepareOptions(escape=True))("It's Tom & Ann")
    assert escaped == "it &apos;s tom &amp; ann"  # tokenizer.perl's escapes
    assert (
        unescape(escaped)
        == text.tokenizer("en", PrepareOptions())("It's Tom & Ann")
        == "it 's tom & ann"
    )
    assert moses_detokenizer("en")(escaped) == "it's tom & ann"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(["Hund", "schläft", "no", "Tom's", "3,5", "well-known", "New", "ja"]),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from([".", "?", "!", ""]),
    st.booleans(),
)
def test_detokenizing_undoes_tokenizing(words, end, escape):
    line = " ".join(words) + end
    # Moses' German detokenizer leaves the space before 's, so that only English gets "Tom's" back
    for lang in ("en",) if "Tom's" in words else ("de", "en"):
        assert moses_detokenizer(lang)(moses_tokenizer(lang, escape)(line)) == line


# -- a stopped, repeated or changed run --


@pytest.mark.slow
def test_resumes_after_a_stop_in_each_step(inputs, prepared, tmp_path, monkeypatch):
    done = []
    for step in STEPS:
        original = getattr(module._Job, step)

        def stop(job, folder, original=original, step=step):
            if step != "bin":
                original(job, folder)
            with open(os.path.join(folder, "half"), "w") as stream:
                stream.write("half")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module._Job, step, stop)
            with pytest.raises(KeyboardInterrupt):
                prepare(inputs, tmp_path, PrepareOptions(vocab_size=60))
        assert sorted(
            entry for entry in os.listdir(tmp_path) if not entry.startswith(".")
        ) == sorted(done)
        done.append(step)
    before = {step: os.stat(tmp_path / step).st_mtime_ns for step in ("raw", "tok")}
    report = prepare(inputs, tmp_path, PrepareOptions(vocab_size=60))
    assert (
        report["dictionaries"] == prepared[1]["dictionaries"]
        and report["lines"] == prepared[1]["lines"]
    )
    assert {step: os.stat(tmp_path / step).st_mtime_ns for step in before} == before
    assert sorted(name for name in os.listdir(tmp_path) if name != ".lock") == [
        "bin",
        "prepare.json",
        "raw",
        "subword",
        "tok",
    ]
    assert not (tmp_path / "subword" / "half").exists()


def test_second_run_does_nothing(inputs, prepared, monkeypatch, capsys):
    for step in STEPS:
        monkeypatch.setattr(module._Job, step, None)
    assert prepare(inputs, prepared[0], PrepareOptions(vocab_size=60)) == prepared[1]
    assert "already prepared" in capsys.readouterr().err


def test_lost_summary_is_written_again(inputs, prepared):
    (prepared[0] / "prepare.json").unlink()
    assert prepare(inputs, prepared[0], PrepareOptions(vocab_size=60)) == prepared[1]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"vocab_size": 61}, "--vocab-size 60, now it is 61"),
        ({"dictionary": "separate"}, "--dictionary joined, now it is separate"),
        ({"keep_case": True}, "--keep-case False, now it is True"),
        ({"limit": 5}, "--limit 0, now it is 5"),
    ],
)
def test_other_options_are_refused(inputs, prepared, change, words):
    before = (prepared[0] / "prepare.json").read_bytes()
    with pytest.raises(PrepareError, match=words) as caught:
        prepare(inputs, prepared[0], PrepareOptions(**dict({"vocab_size": 60}, **change)))
    assert "choose another --out" in str(caught.value) and "\n" not in str(caught.value)
    assert (prepared[0] / "prepare.json").read_bytes() == before


def test_other_text_is_refused(inputs, prepared, tmp_path):
    write_pairs(tmp_path / "valid", pairs(9, 99))
    with pytest.raises(PrepareError, match=r"other text \(valid.de, valid.en\)"):
        prepare(dict(inputs, valid=tmp_path / "valid"), prepared[0], PrepareOptions(vocab_size=60))


def test_folder_of_someone_else_is_refused(inputs, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "mine").write_text("keep")
    with pytest.raises(PrepareError, match="was not made by klang prepare"):
        prepare(inputs, tmp_path, PrepareOptions())
    assert (tmp_path / "raw" / "mine").read_text() == "keep"


def test_a_gap_in_the_steps_is_refused(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(module._Job, "bin", lambda job, folder: BINARISED)
    prepare(inputs, tmp_path, PrepareOptions(vocab_size=60))
    shutil.rmtree(tmp_path / "tok")
    with pytest.raises(PrepareError, match="tok is gone but what was made from it"):
        prepare(inputs, tmp_path, PrepareOptions(vocab_size=60))


def contents(folder):
    """{path: bytes} of all results."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "preprocess.log"
    }


@pytest.mark.slow
def test_a_damaged_folder_is_made_again(inputs, prepared, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    shutil.copytree(prepared[0], out)
    whole, options = contents(out), PrepareOptions(vocab_size=60)
    (out / "bin" / "train.de-en.en.bin").unlink()
    assert prepare(inputs, out, options) == prepared[1] and contents(out) == whole
    assert (
        f"{out / 'bin'} is damaged: train.de-en.en.bin is gone; made again: bin\n"
        in capsys.readouterr().err
    )
    # What was made from the damaged folder is made again, too; the test of bin is above.
    (out / "tok" / "valid.de").write_text("cut")
    with monkeypatch.context() as patch:
        patch.setattr(
            module._Job,
            "bin",
            lambda job, folder: (
                shutil.copytree(prepared[0] / "bin", folder, dirs_exist_ok=True) and BINARISED
            ),
        )
        prepare(inputs, out, options)
    size = (prepared[0] / "tok" / "valid.de").stat().st_size
    assert (
        f"{out / 'tok'} is damaged: valid.de has 3 bytes, not {size:,}; made again: tok, subword, "
        "bin\n" in capsys.readouterr().err
    )
    assert (out / "tok" / "valid.de").read_bytes() == (
        prepared[0] / "tok" / "valid.de"
    ).read_bytes()
    # What others have put there is not lost.
    (out / "raw" / "train.de").unlink()
    (out / "raw" / "thesis.tex").write_text("keep")
    with pytest.raises(
        PrepareError,
        match="raw must be made again, but thesis.tex there was not made by klang prepare",
    ):
        prepare(inputs, out, options)
    assert (out / "raw" / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["prepare.json", *(f"{step}/.step.json" for step in STEPS)])
def test_damaged_records_are_used_or_refused_in_one_line(
    inputs, prepared, tmp_path, monkeypatch, name
):
    out = tmp_path / "out"
    shutil.copytree(prepared[0], out)
    summary, record = (out / "prepare.json").read_text(), (out / name).read_text()
    monkeypatch.setattr(module, "remove_step", lambda folder: None)  # the next copy needs it
    monkeypatch.setattr(module, "run_step", lambda *arguments: BINARISED)
    results = collections.Counter()
    for copy in damaged_json(record, seed=1, count=60):
        (out / "prepare.json").write_text(summary)
        (out / name).write_bytes(copy)
        try:
            prepare(inputs, out, PrepareOptions(vocab_size=60))
            results["used"] += 1
        except PrepareError as error:
            assert str(out) in str(error) and "\n" not in str(error)
            results["refused"] += 1
    assert min(results.values()) > 3 and len(results) == 2


@pytest.mark.parametrize("mark", ",:")
def test_folders_that_fairseq_takes_apart_are_refused_before_work(inputs, tmp_path, mark):
    with pytest.raises(PrepareError, match=f"out{mark}1 holds '{mark}'.*choose a name without it"):
        prepare(inputs, tmp_path / f"out{mark}1", PrepareOptions())
    assert os.listdir(tmp_path) == []


def test_limit_takes_the_first_pairs(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(module._Job, "bin", lambda job, folder: BINARISED)
    assert (
        prepare(inputs, tmp_path, PrepareOptions(limit=7, vocab_size=20))["lines"]["train"]["kept"]
        == 7
    )
    assert lines_of(tmp_path / "raw" / "train.de") == [source for source, _ in pairs(60, 0)][:7]
    assert len(lines_of(tmp_path / "raw" / "valid.de")) == 9


# -- bad input --


def copy(tmp_path, split, lines):
    write_pairs(tmp_path / "x", lines)
    paths = [str(tmp_path / f"x.{lang}") for lang in ("de", "en")]
    return text.copy_raw(split, paths, [str(tmp_path / "out.de"), str(tmp_path / "out.en")])


def test_blank_training_lines_are_dropped_and_counted(tmp_path):
    counts = copy(
        tmp_path, "train", [("a", "b"), ("", "c"), ("d", " \u00a0"), ("e", "\x01"), ("f", "g")]
    )
    assert counts == {"read": 5, "dropped": 3, "kept": 2}
    assert (tmp_path / "out.de").read_text() == "a\nf\n" and (
        tmp_path / "out.en"
    ).read_text() == "b\ng\n"


def test_blank_test_line_is_named(tmp_path):
    with pytest.raises(PrepareError, match=r"x.en line 2 is empty; in test1"):
        copy(tmp_path, "test1", [("a", "b"), ("c", "")])


def test_nothing_left(tmp_path):
    with pytest.raises(PrepareError, match="no pair with text"):
        copy(tmp_path, "train", [("", "b")])


@pytest.mark.parametrize("limit", [0, 1])
def test_unequal_files(tmp_path, limit):
    (tmp_path / "x.de").write_text("a\nb\nc\n")
    (tmp_path / "x.en").write_text("a\nb")
    with pytest.raises(PrepareError, match=r"x.de has 3 lines but .*x.en has 2"):
        text.copy_raw(
            "train",
            [str(tmp_path / "x.de"), str(tmp_path / "x.en")],
            [str(tmp_path / "o1"), str(tmp_path / "o2")],
            limit,
        )


def test_missing_files_name_what_was_looked_for(tmp_path):
    with pytest.raises(PrepareError, match=r"neither .*train.de nor .*train.de.gz"):
        prepare(multi30k_inputs(str(tmp_path)), tmp_path / "out", PrepareOptions())
    with pytest.raises(PrepareError, match="is no folder"):
        multi30k_inputs(str(tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()


def test_multi30k_names():
    assert {
        split: os.path.basename(prefix) for split, prefix in multi30k_inputs(os.curdir).items()
    } == {
        "train": "train",
        "valid": "val",
        "test": "test_2016_flickr",
        "test1": "test_2017_flickr",
        "test2": "test_2017_mscoco",
    }


@pytest.mark.parametrize(
    "options, words",
    [
        ({"subword": "bpee"}, "--subword is 'bpee'; it must be one of bpe, sentencepiece, word"),
        ({"tokenizer": "spacy"}, "--tokenizer is 'spacy'; it must be one of moses, none"),
        ({"dictionary": "both"}, "--dictionary is 'both'; it must be one of joined, separate"),
        ({"vocab_size": 0}, "--vocab-size is 0; it must be 1 or more"),
        ({"vocab_size": -1, "subword": "word"}, "--vocab-size is -1; it must be 0 or more"),
        ({"workers": 0}, "--workers is 0; it must be 1 or more"),
        ({"limit": -3}, "--limit is -3; it must be 0 or more"),
        ({"target_lang": "de"}, "both 'de'"),
        ({"source_lang": "../de"}, "--source-lang is '../de'"),
        ({"escape": True, "tokenizer": "none"}, "--escape needs --tokenizer moses"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(PrepareError) as caught:
        PrepareOptions(**options)
    assert words in str(caught.value)


def test_vocabulary_too_large_for_sentencepiece_can_be_mended(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(module._Job, "bin", lambda job, folder: BINARISED)
    with pytest.raises(PrepareError, match="sentencepiece cannot learn --vocab-size 30000"):
        prepare(inputs, tmp_path, PrepareOptions(subword="sentencepiece", vocab_size=30000))
    assert not (tmp_path / "subword").exists()
    assert (
        prepare(inputs, tmp_path, PrepareOptions(subword="sentencepiece", vocab_size=60))["pieces"]
        == 60
    )


def test_text_without_pairs_of_letters(tmp_path):
    (tmp_path / "x").write_text("a b c\n")
    with pytest.raises(PrepareError, match="no pair of letters to merge"):
        subwords.learn_bpe([str(tmp_path / "x")], str(tmp_path / "codes"), 10)


def test_failing_preprocess_is_an_error():
    with pytest.raises(PrepareError, match="ended with status 3: out of luck"):
        module._run([sys.executable, "-c", "print('out of luck'); raise SystemExit(3)"])


def test_lost_sentences_are_an_error(prepared, monkeypatch):
    out, _ = prepared
    job = module._Job(PrepareOptions(vocab_size=60), {"train": None, "valid": None}, str(out))
    os.rename(out / "bin" / "valid.de-en.en.idx", out / "bin" / "away")
    try:
        with pytest.raises(PrepareError, match="wrote 0 of the 9 sentences"):
            job._check_binary(str(out / "bin"), "en")
    finally:
        os.rename(out / "bin" / "away", out / "bin" / "valid.de-en.en.idx")
    assert job._check_binary(str(out / "bin"), "en") == prepared[1]["vocabulary"]["en"]
