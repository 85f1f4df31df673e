"""Reading hypotheses: what is read from an output, and every file that is refused."""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_klang.analysis.hypotheses import (
    ScoringError,
    join_subwords,
    read_generated,
    read_hypotheses,
)
from fairseq_klang.analysis.tokens import bleu_tokenizer, is_blank
from fairseq_klang.files import TextError
from helpers.outputs import REFERENCE, SYSTEM, generated

JOINED = [line.replace("@@ ", "") for line in SYSTEM]


def pieces(line):
    """The line as a sentencepiece model might split it: words of more than three letters in two."""
    return " ".join(
        "\u2581" + word[:3] + (" " + word[3:] if word[3:] else "") for word in line.split()
    )


@pytest.fixture
def write(tmp_path):
    def write(text, name="gen.out", encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return str(tmp_path / name)

    return write


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(len(SYSTEM))), st.integers(1, 3))
def test_order_and_nbest_do_not_matter(tmp_path_factory, order, nbest):
    path = tmp_path_factory.mktemp("order") / "gen"
    path.write_text(generated(SYSTEM, order, nbest))
    assert read_generated(str(path), len(SYSTEM)) == (SYSTEM, nbest)


def test_interactive_output(write):
    lines = "".join(
        f"S-{i}\tx\nW-{i}\t0.1\tseconds\nH-{i}\t-0.5\t{line}\nD-{i}\t-0.5\tdecoy\nP-{i}\t-0.1\n"
        for i, line in enumerate(SYSTEM)
    )
    assert read_generated(write(lines), 5) == (SYSTEM, 1)


@pytest.mark.parametrize("name", ["gen.out.gz", "gen.out"])
def test_packed_outputs_are_read(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(generated(SYSTEM).encode()))
    assert read_generated(tmp_path / name, 5) == (SYSTEM, 1)


def test_a_pipe_is_read(tmp_path):
    import os
    import threading

    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(generated(SYSTEM),))
    writer.start()
    assert read_generated(tmp_path / "pipe", 5) == (SYSTEM, 1)
    writer.join()


def test_plain_file_with_marks_at_its_lines(write):
    path = write("".join(f"\ufeff{line}\r\n" for line in REFERENCE))
    assert read_hypotheses(path, 5, "en", plain=True).detokenized == REFERENCE
    with pytest.raises(ScoringError, match="has 4 lines but the reference has 5"):
        read_hypotheses(write("a\n" * 4), 5, "en", plain=True)


# -- subwords --


def test_joining():
    # fairseq: ("a@@ b@@" + " ").replace("@@ ", "").rstrip()
    assert join_subwords(["a@@ b@@"], "bpe") == ["ab"]
    assert join_subwords(["\u2581a b \u2581c"], "sentencepiece") == ["ab c"]
    assert join_subwords(["a@@ b \u2581"], "none") == ["a@@ b \u2581"]


@pytest.mark.parametrize("subword", ["bpe", "none", "sentencepiece"])
def test_subwords_that_fairseq_already_joined(write, subword):
    found = read_hypotheses(write(generated(JOINED)), 5, "en", subword=subword)
    assert (found.tokens, found.notes) == (JOINED, [])


@pytest.mark.parametrize("subword", ["bpe", "none"])
def test_a_mark_in_one_line_is_text(write, subword):
    lines = (
        [*JOINED[:4], "a \u2581 bar @@ home"] if subword == "none" else [*SYSTEM[:4], "a \u2581"]
    )
    found = read_hypotheses(write(generated(lines)), 5, "en", subword=subword, tokenizer="none")
    assert found.detokenized == [*JOINED[:4], lines[4]]
    assert "1 of the 5 hypotheses" in found.notes[-1] and "\u2581, taken as text" in found.notes[-1]
    assert len(found.notes) == (2 if subword == "none" else 1)  # @@ too


def test_joined_sentencepiece_that_holds_a_mark_keeps_its_spaces(write):
    lines = [*REFERENCE[:4], "a \u2581 bar"]
    path = write(generated(lines))
    found = read_hypotheses(path, 5, "en", subword="sentencepiece", tokenizer="none")
    assert found.detokenized == lines


def test_pieces_are_joined(write):
    path = write(generated([pieces(line) for line in REFERENCE]))
    found = read_hypotheses(path, 5, "en", subword="sentencepiece", tokenizer="none")
    assert (found.detokenized, found.notes) == (REFERENCE, [])


@pytest.mark.parametrize(
    "lines, given, right",
    [
        ([pieces(line) for line in JOINED], "bpe", "sentencepiece"),
        ([pieces(line) for line in JOINED], "none", "sentencepiece"),
        (SYSTEM, "none", "bpe"),
        (SYSTEM, "sentencepiece", "bpe"),
    ],
)
def test_marks_of_another_kind_in_most_lines_are_refused(write, lines, given, right):
    with pytest.raises(ScoringError, match=f"of the 5 hypotheses .* give --subword {right}"):
        read_hypotheses(write(generated(lines)), 5, "en", subword=given)


# -- refusals --

SKIPPED = "| WARNING | 2 samples have invalid sizes and will be skipped, max_positions=(9, 9)\n"


@pytest.mark.parametrize(
    "text, words",
    [
        (
            generated(SYSTEM, [0, 1, 3]),
            "3 of the 5 lines of the reference: 2 missing, the first is number 2; fairseq drops "
            "the last batch unless .*--required-batch-size-multiple 1",
        ),
        (
            SKIPPED + generated(SYSTEM, [0, 1, 3]),
            "2 missing, the first is number 2; fairseq skipped sentences longer than the model "
            r"takes \(--skip-invalid-size-inputs-valid-test\)",
        ),
        (
            generated(SYSTEM + ["more"]),
            "hypothesis for sentence 5, but the reference has only 5 lines",
        ),
        (generated(SYSTEM) + generated(SYSTEM), "holds? .*two outputs"),
        (generated(SYSTEM)[:-40] + "\nH-4\t-0.1\tcut", "stops in the middle of its last line"),
        ("nothing here\n", "no line that starts with H-"),
        ("", "no line that starts with H-"),
    ],
)
def test_refused_outputs(write, text, words):
    with pytest.raises(ScoringError, match=words) as caught:
        read_hypotheses(write(text), 5, "en")
    assert "\n" not in str(caught.value)


def test_unreadable_outputs(write, tmp_path):
    path = write(generated(SYSTEM), encoding="utf-16")
    with pytest.raises(TextError, match=r"line 1 is not UTF-8 \(it is UTF-16\); convert the file"):
        read_generated(path, 5)
    with pytest.raises(TextError, match="line 1 is not UTF-8"):
        read_generated(write("H-0\t-1\tfünf\n", encoding="latin-1"), 5)
    with pytest.raises(TextError, match="does not exist"):
        read_generated(tmp_path / "none", 5)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(generated(SYSTEM).encode())[:-9])
    with pytest.raises(TextError, match="damaged or cut short"):
        read_generated(tmp_path / "cut.gz", 5)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"subword": "spm"}, "--subword is 'spm'; it must be one of bpe, sentencepiece, none"),
        ({"tokenizer": "x"}, "--tokenizer is 'x'; it must be one of moses, none"),
    ],
)
def test_bad_options(write, options, words):
    with pytest.raises(ScoringError, match=words):
        read_hypotheses(write(generated(SYSTEM)), 5, "en", **options)


# -- tokens --


@given(
    st.text(alphabet=" \t\x00\x1f\u00a0\u2003\u200b\u200c\u200d\u2060\ufeff\u00adab", max_size=6)
)
def test_blank_means_no_letter(line):
    assert is_blank(line) == (not set(line) & set("ab"))


def test_each_language_has_its_tokenizer(monkeypatch):
    from sacrebleu.metrics import BLEU

    assert [bleu_tokenizer(lang) for lang in ("en", "ru", "pt_BR")] == [("13a", None)] * 3
    assert [bleu_tokenizer(lang) for lang in ("zh", "zh_CN", "cmn")] == [("zh", None)] * 3
    name, note = bleu_tokenizer("th")
    assert name == "char" and "flores200" in note

    class Full(BLEU):  # MeCab is installed
        def __init__(self, tokenize):
            pass

    class Lean(BLEU):  # sacrebleu's error where it is not
        def __init__(self, tokenize):
            raise RuntimeError("Please install them like so.\n\n    pip install sacrebleu[..]")

    for lang, tokenizer in (("ja", "ja-mecab"), ("kor", "ko-mecab")):
        monkeypatch.setattr("sacrebleu.metrics.BLEU", Full)
        assert bleu_tokenizer(lang) == (tokenizer, None)
        monkeypatch.setattr("sacrebleu.metrics.BLEU", Lean)
        name, note = bleu_tokenizer(lang)
        assert name == "char" and f"pip install 'sacrebleu[{tokenizer[:2]}]'" in note
