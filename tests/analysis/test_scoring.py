"""Scoring: the numbers against sacrebleu called directly, and every file that must be refused."""

import math
import random
import sys

import pytest
from sacrebleu.metrics import BLEU, CHRF

from fairseq_klang.analysis import scoring
from fairseq_klang.analysis.hypotheses import ScoringError, read_hypotheses
from fairseq_klang.analysis.scoring import compare, format_report, score, self_test
from fairseq_klang.analysis.tokens import moses_tokenizer
from helpers.outputs import REFERENCE, SYSTEM, generated

DETOKENIZED = [
    "anna's brother paints the gate.",
    "it rains, and the boats stay in the harbour.",
    "who locked a door?",
    "a well-known tower stands behind a mill!",
    "the baker sold 3,500 rolls & cakes in may.",
]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "ref.en").write_text("".join(line + "\n" for line in REFERENCE))

    def write(text, name="gen.out"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return str(tmp_path / "ref.en"), write


def test_every_number_is_sacrebleus(files):
    reference, write = files
    report = score(reference, [write(generated(SYSTEM))])
    (system,) = report.systems
    cased = BLEU()
    expected = cased.corpus_score(DETOKENIZED, [REFERENCE])
    assert (system.bleu.score, system.bleu.signature) == (
        expected.score,
        str(cased.get_signature()),
    )
    assert system.precisions == expected.precisions
    assert (system.brevity_penalty, system.sys_len, system.ref_len) == (
        expected.bp,
        expected.sys_len,
        expected.ref_len,
    )
    assert system.length_ratio == expected.sys_len / expected.ref_len
    lower = BLEU(lowercase=True)
    assert (
        system.bleu_lc.score
        == lower.corpus_score(DETOKENIZED, [REFERENCE]).score
        > system.bleu.score
    )
    assert "case:lc" in system.bleu_lc.signature and "tok:13a" in system.bleu_lc.signature
    chrf = CHRF()
    assert (system.chrf.score, system.chrf.signature) == (
        chrf.corpus_score(DETOKENIZED, [REFERENCE]).score,
        str(chrf.get_signature()),
    )
    tokens = [moses_tokenizer("en")(line).lower() for line in REFERENCE]
    plain = BLEU(tokenize="none", force=True).corpus_score(
        [line.replace("@@ ", "") for line in SYSTEM], [tokens]
    )
    assert system.bleu_tok.score == plain.score and "tok:none" in system.bleu_tok.signature
    assert system.sentences == 5 and system.nbest == 1 and report.differences is None


def test_tokenised_reference_is_moses():
    # by the rules of tokenizer.perl: the clitic and the full stop split off, the number and the
    # compound stay whole
    assert moses_tokenizer("en")(REFERENCE[0]) == "Anna 's brother paints the old gate ."
    assert moses_tokenizer("en")(REFERENCE[4]) == "The baker sold 3,500 rolls & two cakes in May ."


def test_a_perfect_lowercased_system(files):
    reference, write = files
    perfect = [moses_tokenizer("en")(line).lower() for line in REFERENCE]
    (system,) = score(reference, [write(generated(perfect))]).systems
    assert system.bleu_lc.score == pytest.approx(100) and system.bleu_tok.score == pytest.approx(
        100
    )
    assert system.bleu.score < 95  # cased


def test_escaped_tokens_score_the_same(files):
    reference, write = files
    escaped = [line.replace("&", "&amp;").replace("'", "&apos;") for line in SYSTEM]
    one, two = score(
        reference, [write(generated(SYSTEM), "a"), write(generated(escaped), "b")], samples=40
    ).systems
    assert [one.bleu, one.bleu_lc, one.bleu_tok, one.chrf] == [
        two.bleu,
        two.bleu_lc,
        two.bleu_tok,
        two.chrf,
    ]


def test_nbest_is_told(files):
    reference, write = files
    report = score(reference, [write(generated(SYSTEM, nbest=4))])
    assert report.systems[0].nbest == 4
    assert "4 hypotheses a sentence; the first of each was scored" in format_report(report)


def test_sentencepiece_without_tokenizer(files):
    reference, write = files
    pieces = [
        " ".join(
            "\u2581" + word[:3] + (" " + word[3:] if word[3:] else "") for word in line.split()
        )
        for line in REFERENCE
    ]
    (system,) = score(
        reference, [write(generated(pieces))], subword="sentencepiece", tokenizer="none"
    ).systems
    assert system.bleu.score == pytest.approx(100) and system.bleu_tok.score == pytest.approx(100)


def test_plain_file(files):
    reference, write = files
    path = write("".join(line + "\n" for line in DETOKENIZED), "plain")
    (plain,) = score(reference, [path], plain=True).systems
    (made,) = score(reference, [write(generated(SYSTEM))]).systems
    assert (plain.bleu, plain.bleu_lc, plain.bleu_tok, plain.chrf) == (
        made.bleu,
        made.bleu_lc,
        made.bleu_tok,
        made.chrf,
    )
    with pytest.raises(ScoringError, match="has 4 lines but the reference has 5"):
        score(
            reference,
            [write("".join(line + "\n" for line in DETOKENIZED[1:]), "short")],
            plain=True,
        )


# -- languages --

CHINESE = ["狗在花园里睡觉。", "火车正在过河。"]


def plain_score(write, lines, lang, hypotheses=None, **options):
    reference = write("".join(line + "\n" for line in lines), f"ref.{lang}")
    path = write("".join(line + "\n" for line in hypotheses or lines), "plain")
    return score(reference, [path], plain=True, **options)


def test_chinese_is_scored_by_its_characters(files):
    lines = CHINESE * 13 + [CHINESE[0][:4]]
    wrong = [*lines[:26], CHINESE[1][:4]]
    report = plain_score(files[1], lines, "zh", wrong)
    (system,) = report.systems
    expected = BLEU(trg_lang="zh").corpus_score(wrong, [lines])  # sacrebleu's own choice
    assert system.bleu.score == expected.score > 90 and "tok:zh" in system.bleu.signature
    assert "tok:zh" in system.bleu_lc.signature and report.notes == []
    (system,) = plain_score(files[1], CHINESE, "zh").systems
    assert system.bleu.score == pytest.approx(100)


def test_the_tokenizer_can_be_chosen(files):
    report = plain_score(files[1], CHINESE, "zh", sacrebleu_tokenize="char")
    assert "tok:char" in report.systems[0].bleu.signature


def test_a_tokenizer_that_stands_in_is_told(files):
    thai = ["สุนัขนอน", "รถไฟวิ่ง"]
    report = plain_score(files[1], thai, "th")
    assert "tok:char" in report.systems[0].bleu.signature
    assert "note: BLEU counts characters (char)" in format_report(report)


RUSSIAN = ["Он сказал: «Я не знаю дороги, а ты?»"] * 3


def test_what_joining_tokens_loses_is_told(files):
    split = moses_tokenizer("ru")
    reference = files[1]("".join(line + "\n" for line in RUSSIAN), "ref.ru")
    perfect = files[1](generated([split(line) for line in RUSSIAN]))
    report = score(reference, [perfect])
    (note,) = report.notes
    assert f"has BLEU {report.systems[0].bleu.score:.2f}" in note and "--plain" in note
    assert report.systems[0].bleu.score < 95
    running = files[1](generated(RUSSIAN), "running")
    report = score(reference, [running], tokenizer="none")
    assert report.notes == [] and report.systems[0].bleu.score == pytest.approx(100)


# -- two systems --


def noisy(lines, rate, seed):
    rng = random.Random(seed)
    return [
        " ".join(word for word in line.split() if rng.random() > rate) or "nothing"
        for line in lines
    ]


def test_two_systems_are_compared_as_the_significance_module_does(files):
    reference, write = files
    first, second = noisy(SYSTEM, 0.2, 1), noisy(SYSTEM, 0.25, 2)
    paths = [write(generated(lines), name) for lines, name in ((first, "a"), (second, "b"))]
    report = score(reference, paths, samples=60, seed=7)
    hypotheses = [read_hypotheses(path, len(REFERENCE), "en").detokenized for path in paths]
    expected = compare(BLEU(), hypotheses[:1], hypotheses[1:], REFERENCE, samples=60, seed=7)
    assert report.differences["bleu"] == expected and expected.over == "sentences"


def test_report_of_two_systems(files):
    reference, write = files
    worse = noisy(SYSTEM, 0.3, 3)
    report = score(
        reference,
        [write(generated(SYSTEM), "a.out"), write(generated(worse), "b.out")],
        samples=50,
        seed=3,
    )
    assert set(report.differences) == {"bleu", "bleu_lc", "bleu_tok", "chrf"} and (
        report.samples,
        report.seed,
    ) == (50, 3)
    for name, difference in report.differences.items():
        first, second = (getattr(system, name).score for system in report.systems)
        assert difference.delta == pytest.approx(second - first) and difference.delta < 0
        assert (
            difference.interval[0] <= difference.delta <= difference.interval[1]
            and 0 < difference.p_value <= 1
        )
    table = format_report(report).splitlines()
    assert "a.out" in table[1] and "b.out" in table[1] and table[1].endswith("p")
    assert f"{report.systems[1].bleu.score:.2f}" in table[2] and "nrefs:1" in "\n".join(table)
    assert len({len(line) for line in table[2:6]}) == 1  # aligned
    assert report.as_dict()["differences"]["bleu"]["delta"] == report.differences["bleu"].delta


# -- refusals --


def test_other_refusals(files, tmp_path):
    reference, write = files
    good = write(generated(SYSTEM))
    with pytest.raises(ScoringError, match="got 3 systems"):
        score(reference, [good] * 3)
    with pytest.raises(ScoringError, match="--samples is 39; it must be 40 to 100,000"):
        score(reference, [good], samples=39)
    with pytest.raises(ScoringError, match="--seed is -1; it must be 0 or more"):
        score(reference, [good, good], seed=-1)
    with pytest.raises(ScoringError, match="--sacrebleu-tokenize is 'moses'; it must be one of"):
        score(reference, [good], sacrebleu_tokenize="moses")
    with pytest.raises(ScoringError, match="is empty"):
        score(write("", "empty.en"), [good])
    with pytest.raises(ScoringError, match="give --target-lang"):
        score(write("x\n", "reference.txt1"), [good])


# -- the self-test --


def test_self_test_passes_and_its_numbers_are_right():
    self_test()
    # "the cat sat on a mat" against "the cat sat on the mat": 5/6 words (a is wrong), 3/5 pairs
    # (the cat, cat sat, sat on), 2/4 triples, 1/3 fours; product 1/12, equal lengths
    result = BLEU().corpus_score(["the cat sat on a mat"], [["the cat sat on the mat"]])
    assert (result.counts, result.totals, result.bp) == ([5, 3, 2, 1], [6, 5, 4, 3], 1.0)
    assert result.score == pytest.approx(100 * (1 / 12) ** 0.25) == pytest.approx(53.7285, abs=1e-4)
    # both sentences: 11/12 * 8/10 * 6/8 * 4/6 = 11/30, and 12 words for 15
    total = BLEU.compute_bleu(
        correct=[11, 8, 6, 4], total=[12, 10, 8, 6], sys_len=12, ref_len=15, smooth_method="exp"
    )
    assert total.score == pytest.approx(100 * math.exp(-0.25) * (11 / 30) ** 0.25)


def test_self_test_sees_a_missing_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ScoringError, match="cannot be imported .*pip install"):
        self_test()


def test_self_test_sees_a_wrong_number(monkeypatch):
    original = BLEU.compute_bleu

    def wrong(correct, total, sys_len, ref_len, smooth_method="none", **more):
        return original(correct, total, sys_len, sys_len, smooth_method=smooth_method, **more)

    monkeypatch.setattr(BLEU, "compute_bleu", staticmethod(wrong))
    with pytest.raises(ScoringError, match=r"gives BLEU 77\.8\d+ where 60\.6\d+ is right"):
        self_test()


def test_self_test_sees_another_interface(monkeypatch):
    def changed(hypotheses, references):
        raise TypeError("references must be a dict")

    import sacrebleu

    monkeypatch.setattr(sacrebleu, "corpus_bleu", changed)
    with pytest.raises(
        ScoringError, match="does not work as fairseq calls it .TypeError"
    ) as caught:
        self_test()
    assert "\n" not in str(caught.value)


def test_scoring_imports_no_fairseq():
    import ast

    with open(scoring.__file__) as stream:
        tree = ast.parse(stream.read())
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
    ]
    assert not any(name.split(".")[0] == "fairseq" for name in names)
