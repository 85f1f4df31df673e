"""The quickstart's grammar: paradigms and word order written out by hand, and what it promises."""

import hashlib
import importlib.util
import os
import random

import pytest

from fairseq_klang import files
from helpers.running import ROOT

PATH = os.path.join(ROOT, "examples", "quickstart", "grammar.py")
SPEC = importlib.util.spec_from_file_location("quickstart_grammar", PATH)
grammar = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(grammar)

# Every expected German and English form is written by hand from the school grammar of the two.


@pytest.fixture(scope="module")
def splits():
    return grammar.corpus(1, [12000, 507, 503])


@pytest.mark.parametrize(
    "kind, gender, expected",
    [
        ("weak", "m", "e en en"),  # der kleine Hund, den kleinen Hund, dem kleinen Hund
        ("weak", "f", "e e en"),
        ("weak", "n", "e e en"),
        ("weak", "p", "en en en"),
        ("mixed", "m", "er en en"),  # ein kleiner Hund
        ("mixed", "f", "e e en"),
        ("mixed", "n", "es es en"),
        ("mixed", "p", "en en en"),  # keine kleinen Hunde
        ("strong", "p", "e e en"),  # kleine Hunde
    ],
)
def test_adjective_endings(kind, gender, expected):
    found = [grammar.adjective_ending(kind, case, gender) for case in grammar.CASES]
    assert found == expected.split()


@pytest.mark.parametrize("gender, expected", [("m", "- en em"), ("f", "e e er"), ("n", "- - em")])
def test_endings_of_ein(gender, expected):
    found = [grammar.ein_ending(case, gender) or "-" for case in grammar.CASES]
    assert found == expected.split()


@pytest.mark.parametrize(
    "word, plural",
    [("box", "boxes"), ("story", "stories"), ("boy", "boys"), ("church", "churches")],
)
def test_english_s(word, plural):
    assert grammar.add_s(word) == plural


@pytest.mark.parametrize(
    "verb, past", [("carry", "carried"), ("play", "played"), ("look for", "looked for")]
)
def test_english_past(verb, past):
    assert grammar.english_past(verb) == past


def phrase(word, person="3s"):
    return grammar.Phrase({case: [word] for case in grammar.CASES}, ([word], [word]), person)


def clause(verb, tense, person="3s", negated=False):
    """Somebody, X, does something to the door today; X and the door have one form here."""
    middle = (["die", "Tür"] + ["nicht"] * negated, ["the", "door"])
    row = grammar.rows(verb)[0]
    return grammar.Clause(
        phrase("X", person), grammar.Verb(row), tense, middle, (["heute"], ["today"]), negated
    )


OPEN = "auf+machen macht aufgemacht h open"


@pytest.mark.parametrize(
    "tense, main, final, english",
    [
        ("present", "X macht heute die Tür auf", "X heute die Tür aufmacht", "X opens the door"),
        (
            "past",
            "X hat heute die Tür aufgemacht",
            "X heute die Tür aufgemacht hat",
            "X opened the door",
        ),
        (
            "will",
            "X wird heute die Tür aufmachen",
            "X heute die Tür aufmachen wird",
            "X will open the door",
        ),
        (
            "have to",
            "X muss heute die Tür aufmachen",
            "X heute die Tür aufmachen muss",
            "X has to open the door",
        ),
    ],
)
def test_the_verb_is_second_or_last(tense, main, final, english):
    drawn = clause(OPEN, tense)
    assert " ".join(drawn.german()) == main
    assert " ".join(drawn.german(final=True)) == final
    fronted = " ".join(drawn.german(["heute"]))
    assert fronted == "heute " + main.replace("heute ", "").replace("X ", "", 1).replace(
        " ", " X ", 1
    )
    assert " ".join(drawn.german([])).split()[1] == "X"  # a question: the verb, then who
    assert " ".join(drawn.english()) == english + " today"


@pytest.mark.parametrize(
    "tense, person, negated, question",
    [
        ("present", "3s", "X does not open the door today", "does X open the door today"),
        ("present", "1s", "X do not open the door today", "do X open the door today"),
        ("past", "3s", "X did not open the door today", "did X open the door today"),
        ("can", "3p", "X can not open the door today", "can X open the door today"),
        ("want to", "3s", "X does not want to open the door today", "does X want to open the door"),
    ],
)
def test_english_takes_an_auxiliary(tense, person, negated, question):
    assert " ".join(clause(OPEN, tense, person, negated=True).english()) == negated
    assert " ".join(clause(OPEN, tense, person).english(question=True)).startswith(question)


def test_persons_of_a_verb():
    verb = grammar.Verb(grammar.rows("ein+schlafen schläft eingeschlafen s fall_asleep")[0])
    forms = [verb.german("present", person)[0] for person in ("1s", "3s", "1p", "3p")]
    assert forms == ["schlafe", "schläft", "schlafen", "schlafen"]
    assert [
        verb.german("past", person)[0] for person in ("1s", "3s", "3p")
    ] == "bin ist sind".split()


def test_spelling():
    words = "an apple , because a apple can not ,".split()
    assert grammar.spell(words) == "An apple, because an apple cannot."
    assert grammar.spell(["who", "?"]) == "Who?"


def test_no_sentence_occurs_twice(splits):
    assert [len(pairs) for pairs in splits] == [12000, 507, 503]
    for side in (0, 1):
        sentences = [pair[side] for pairs in splits for pair in pairs]
        assert len(set(sentences)) == len(sentences)


def test_every_sentence_is_spelled_as_text(splits):
    for pairs in splits:
        for sentence in (text for pair in pairs for text in pair):
            assert sentence[0].isupper() and sentence[-1] in ".?"
            assert not set("+_|") & set(sentence) and "  " not in sentence
            assert " ," not in sentence and ",," not in sentence


def test_there_is_something_to_learn(splits):
    """Questions, subordinate clauses, negations, and words that a test sentence shares with
    training: a vocabulary that is neither tiny nor unseen."""
    train, _, test = splits
    german = [pair[0] for pair in train]
    for word in ("weil", "dass", "nicht", "kein", "um"):
        assert sum(f" {word}" in sentence for sentence in german) > 100, word
    assert sum(sentence.endswith("?") for sentence in german) > 500
    words = {word for pair in train for word in pair[0].strip(".?").replace(",", "").split()}
    assert 500 < len(words) < 5000
    rest = {word for pair in test for word in pair[0].strip(".?").replace(",", "").split()} - words
    assert len(rest) < 30
    lengths = sorted(len(pair[0].split()) for pair in train)
    assert lengths[len(lengths) // 100] >= 2 and 8 <= lengths[len(lengths) // 2] <= 14


def test_one_seed_gives_the_same_bytes(splits, tmp_path, capsys):
    state = random.getstate()
    arguments = [
        "--out",
        str(tmp_path / "a"),
        "--train",
        "12000",
        "--valid",
        "507",
        "--test",
        "503",
    ]
    assert grammar.main(arguments) == 0 and random.getstate() == state
    assert "wrote 12000 train, 507 valid, 503 test pairs" in capsys.readouterr().out
    lines = (tmp_path / "a" / "test.de").read_text(encoding="utf-8").splitlines()
    assert lines == [pair[0] for pair in splits[2]]
    digest = hashlib.sha256()
    for name in sorted(os.listdir(tmp_path / "a")):
        digest.update(files.sha256(tmp_path / "a" / name).encode())
    # what grammar.py wrote on Python 3.8, 3.11 and 3.13
    assert digest.hexdigest()[:16] == "7200f00fa68d0585"
    assert grammar.corpus(2, [50]) != grammar.corpus(1, [50])


def test_bad_options_end_in_one_line(tmp_path, capsys):
    assert grammar.main(["--out", str(tmp_path), "--train", "0"]) == 2
    assert capsys.readouterr().err == "grammar.py: error: --train is 0; it must be at least 1\n"
    (tmp_path / "file").write_text("")
    assert grammar.main(["--out", str(tmp_path / "file"), "--train", "1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_too_many_sentences_are_refused(monkeypatch):
    monkeypatch.setattr(grammar.Speaker, "sentence", lambda self: ("Ja.", "Yes."))
    with pytest.raises(grammar.KlangError, match="the grammar has no 7 sentences; ask for fewer"):
        grammar.corpus(1, [7])
