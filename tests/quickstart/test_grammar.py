"""The quickstart's grammar: paradigms written out by hand, word order, and what the corpus promises
as a whole."""

import hashlib
import os
import subprocess
import sys

import pytest

from helpers.running import ROOT

FOLDER = os.path.join(ROOT, "examples", "quickstart")
sys.path.insert(0, FOLDER)

import grammar  # noqa: E402

# Every expected German and English form below is written by hand from the school grammar of the two
# languages.


@pytest.fixture(scope="module")
def splits():
    return grammar.corpus(1, [12000, 507, 503])


def noun(singular, english=None):
    return next(n for n in grammar.NOUNS if n.singular == singular and english in (None, n.english))


def forms(word, number, determiner, adjective=None):
    phrase = grammar.NounPhrase(
        noun(word), number, determiner, [(adjective, "")] if adjective else []
    )
    return [" ".join(phrase.german(case)) for case in ("nom", "acc", "dat", "gen")]


@pytest.mark.parametrize(
    "word, number, determiner, adjective, expected",
    [
        (
            "Hund",
            "s",
            "def",
            "klein",
            "der kleine Hund, den kleinen Hund, dem kleinen Hund, des kleinen Hundes",
        ),
        (
            "Hund",
            "s",
            "indef",
            "klein",
            "ein kleiner Hund, einen kleinen Hund, einem kleinen Hund, eines kleinen Hundes",
        ),
        (
            "Hund",
            "p",
            "indef",
            "klein",
            "kleine Hunde, kleine Hunde, kleinen Hunden, kleiner Hunde",
        ),
        (
            "Hund",
            "p",
            "kein",
            "klein",
            "keine kleinen Hunde, keine kleinen Hunde, keinen kleinen Hunden, keiner kleinen Hunde",
        ),
        (
            "Katze",
            "s",
            "def",
            "alt",
            "die alte Katze, die alte Katze, der alten Katze, der alten Katze",
        ),
        (
            "Katze",
            "s",
            "kein",
            "alt",
            "keine alte Katze, keine alte Katze, keiner alten Katze, keiner alten Katze",
        ),
        (
            "Katze",
            "p",
            "def",
            "alt",
            "die alten Katzen, die alten Katzen, den alten Katzen, der alten Katzen",
        ),
        (
            "Haus",
            "s",
            "this",
            "neu",
            "dieses neue Haus, dieses neue Haus, diesem neuen Haus, dieses neuen Hauses",
        ),
        (
            "Haus",
            "s",
            "indef",
            "neu",
            "ein neues Haus, ein neues Haus, einem neuen Haus, eines neuen Hauses",
        ),
        (
            "Haus",
            "p",
            23,
            "neu",
            "dreiundzwanzig neue Häuser, dreiundzwanzig neue Häuser, dreiundzwanzig neuen Häusern, "
            "dreiundzwanzig neuer Häuser",
        ),
        (
            "Haus",
            "p",
            "all",
            "neu",
            "alle neuen Häuser, alle neuen Häuser, allen neuen Häusern, aller neuen Häuser",
        ),
        (
            "Haus",
            "p",
            "many",
            "neu",
            "viele neue Häuser, viele neue Häuser, vielen neuen Häusern, vieler neuer Häuser",
        ),
        (
            "Kaffee",
            "s",
            "none",
            "kalt",
            "kalter Kaffee, kalten Kaffee, kaltem Kaffee, kalten Kaffees",
        ),
        ("Milch", "s", "none", "kalt", "kalte Milch, kalte Milch, kalter Milch, kalter Milch"),
        (
            "Wasser",
            "s",
            "none",
            "kalt",
            "kaltes Wasser, kaltes Wasser, kaltem Wasser, kalten Wassers",
        ),
        (
            "Student",
            "s",
            "def",
            "jung",
            "der junge Student, den jungen Studenten, dem jungen Studenten, des jungen Studenten",
        ),
        ("Auto", "p", "def", None, "die Autos, die Autos, den Autos, der Autos"),
        ("Kind", "s", "every", None, "jedes Kind, jedes Kind, jedem Kind, jedes Kindes"),
    ],
)
def test_declension(word, number, determiner, adjective, expected):
    assert forms(word, number, determiner, adjective) == expected.split(", ")


def test_possessives_agree_with_owner_and_thing():
    owners = {
        "1s": "mein",
        "2s": "dein",
        "3m": "sein",
        "3f": "ihr",
        "1p": "unser",
        "2p": "euer",
        "3p": "ihr",
        "F": "Ihr",
    }
    for key, expected in owners.items():
        assert forms("Hut", "s", grammar.Pronoun(key))[0] == f"{expected} Hut"
    assert forms("Tasche", "s", grammar.Pronoun("2p"))[2] == "eurer Tasche"
    assert forms("Hut", "s", grammar.Name("f", "Anna"))[1] == "Annas Hut"
    assert forms("Hut", "s", grammar.Name("m", "Felix"))[1] == "Felix' Hut"
    her = grammar.Pronoun(grammar.NounPhrase(noun("Mädchen")).key(), "3f")
    phrase = grammar.NounPhrase(noun("Hut"), "s", her)
    assert (phrase.german("acc"), phrase.english("object")) == (["seinen", "Hut"], ["her", "hat"])


@pytest.mark.parametrize(
    "verb, present, past, participle, auxiliary, zu",
    [
        (
            "lernen",
            "lerne lernst lernt lernen lernt lernen",
            "lernte lerntest lernte lernten lerntet lernten",
            "gelernt",
            "haben",
            "zu lernen",
        ),
        (
            "arbeiten",
            "arbeite arbeitest arbeitet arbeiten arbeitet arbeiten",
            "arbeitete arbeitetest arbeitete arbeiteten arbeitetet arbeiteten",
            "gearbeitet",
            "haben",
            "zu arbeiten",
        ),
        (
            "lesen",
            "lese liest liest lesen lest lesen",
            "las lasest las lasen last lasen",
            "gelesen",
            "haben",
            "zu lesen",
        ),
        (
            "fahren",
            "fahre fährst fährt fahren fahrt fahren",
            "fuhr fuhrst fuhr fuhren fuhrt fuhren",
            "gefahren",
            "sein",
            "zu fahren",
        ),
        (
            "ein+laden",
            "lade lädst lädt laden ladet laden",
            "lud ludest lud luden ludet luden",
            "eingeladen",
            "haben",
            "einzuladen",
        ),
        (
            "auf+machen",
            "mache machst macht machen macht machen",
            "machte machtest machte machten machtet machten",
            "aufgemacht",
            "haben",
            "aufzumachen",
        ),
        (
            "auf+stehen",
            "stehe stehst steht stehen steht stehen",
            "stand standest stand standen standet standen",
            "aufgestanden",
            "sein",
            "aufzustehen",
        ),
        (
            "wandern",
            "wandere wanderst wandert wandern wandert wandern",
            "wanderte wandertest wanderte wanderten wandertet wanderten",
            "gewandert",
            "sein",
            "zu wandern",
        ),
        (
            "öffnen",
            "öffne öffnest öffnet öffnen öffnet öffnen",
            "öffnete öffnetest öffnete öffneten öffnetet öffneten",
            "geöffnet",
            "haben",
            "zu öffnen",
        ),
        (
            "reparieren",
            "repariere reparierst repariert reparieren repariert reparieren",
            "reparierte repariertest reparierte reparierten repariertet reparierten",
            "repariert",
            "haben",
            "zu reparieren",
        ),
        (
            "wissen",
            "weiß weißt weiß wissen wisst wissen",
            "wusste wusstest wusste wussten wusstet wussten",
            "gewusst",
            "haben",
            "zu wissen",
        ),
        (
            "sein",
            "bin bist ist sind seid sind",
            "war warst war waren wart waren",
            "gewesen",
            "sein",
            "zu sein",
        ),
        (
            "haben",
            "habe hast hat haben habt haben",
            "hatte hattest hatte hatten hattet hatten",
            "gehabt",
            "haben",
            "zu haben",
        ),
    ],
)
def test_conjugation(verb, present, past, participle, auxiliary, zu):
    word, persons = (
        grammar.Verb(verb),
        [(person, number) for number in "sp" for person in (1, 2, 3)],
    )
    assert " ".join(word.present(*p) for p in persons) == present
    assert " ".join(word.past(*p) for p in persons) == past
    assert (word.participle, word.auxiliary, " ".join(word.zu_infinitive())) == (
        participle,
        auxiliary,
        zu,
    )


def test_compounds_have_the_gender_and_plural_of_their_head():
    door = noun("Tür").with_first_part("Haus", "house")
    assert [door.german(case, "p") for case in ("nom", "dat")] == ["Haustüren", "Haustüren"]
    assert (door.gender, door.english, grammar.english_plural(door.english)) == (
        "f",
        "house door",
        "house doors",
    )
    knife = noun("Messer").with_first_part("Küchen", "kitchen")
    assert (knife.german("gen", "s"), grammar.english_plural(knife.english)) == (
        "Küchenmessers",
        "kitchen knives",
    )


def test_one_german_word_has_the_plural_of_its_meaning():
    assert {n.english: n.plural for n in grammar.NOUNS if n.singular == "Bank"} == {
        "bench": "Bänke",
        "bank": "Banken",
    }
    assert {n.english for n in grammar.NOUNS if n.singular == "Schloss"} == {"lock", "castle"}


def clause(when="now", subject=None, verb=("auf+machen", "A:", "open"), **slots):
    slots.setdefault("accusative", grammar.NounPhrase(noun("Tür")))
    return grammar.Clause(subject or grammar.Name("f", "Anna"), verb, when, **slots)


def said(german, english):
    return grammar.spell(german), grammar.spell(grammar.articles(english))


SATURDAY = ["am", "Samstag"], ["on", "Saturday"]


@pytest.mark.parametrize(
    "made, order, expected",
    [
        (clause(), {}, ("Anna macht die Tür auf", "Anna opens the door")),
        (clause(), {"order": "first"}, ("Macht Anna die Tür auf", "Does Anna open the door")),
        (clause(), {"order": "final"}, ("Anna die Tür aufmacht", "Anna opens the door")),
        (clause(), {"order": "zu"}, ("Die Tür aufzumachen", "To open the door")),
        (clause(), {"lead": "accusative"}, ("Die Tür macht Anna auf", "Anna opens the door")),
        (clause("going"), {}, ("Anna macht die Tür auf", "Anna is opening the door")),
        (
            clause("past", time=SATURDAY),
            {"lead": "time"},
            ("Am Samstag machte Anna die Tür auf", "Anna opened the door on Saturday"),
        ),
        (
            clause("past", spoken=True),
            {"order": "final"},
            ("Anna die Tür aufgemacht hat", "Anna opened the door"),
        ),
        (
            clause("past", negated=True, spoken=True),
            {},
            ("Anna hat die Tür nicht aufgemacht", "Anna did not open the door"),
        ),
        (
            clause("perfect"),
            {},
            ("Anna hat die Tür schon aufgemacht", "Anna has already opened the door"),
        ),
        (
            clause("perfect", negated=True),
            {},
            ("Anna hat die Tür noch nicht aufgemacht", "Anna has not opened the door yet"),
        ),
        (clause("future"), {}, ("Anna wird die Tür aufmachen", "Anna will open the door")),
        (clause("unreal"), {}, ("Anna würde die Tür aufmachen", "Anna would open the door")),
        (
            clause(modal="müssen"),
            {"order": "final"},
            ("Anna die Tür aufmachen muss", "Anna must open the door"),
        ),
        (
            clause(modal="müssen", negated=True),
            {},
            ("Anna muss die Tür nicht aufmachen", "Anna does not have to open the door"),
        ),
        (
            clause(modal="dürfen", negated=True),
            {},
            ("Anna darf die Tür nicht aufmachen", "Anna must not open the door"),
        ),
        (
            clause(modal="können", negated=True),
            {},
            ("Anna kann die Tür nicht aufmachen", "Anna cannot open the door"),
        ),
        (
            clause("past", modal="müssen"),
            {},
            ("Anna musste die Tür aufmachen", "Anna had to open the door"),
        ),
        (clause(likes=True), {}, ("Anna macht die Tür gern auf", "Anna likes to open the door")),
        (
            clause(frequency=("nie", "never")),
            {},
            ("Anna macht nie die Tür auf", "Anna never opens the door"),
        ),
        (
            clause(accusative=grammar.Pronoun("3f", "3n"), time=SATURDAY),
            {},
            ("Anna macht sie am Samstag auf", "Anna opens it on Saturday"),
        ),
        (
            clause(
                accusative=grammar.NounPhrase(noun("Ei"), "s", "kein"),
                negated=True,
                verb=("essen", "A:", "eat"),
            ),
            {},
            ("Anna isst kein Ei", "Anna does not eat an egg"),
        ),
        (
            clause(
                "past",
                grammar.NounPhrase(noun("Haus")),
                ("bauen", "A:", "build"),
                accusative=None,
                passive=True,
                agent=grammar.NounPhrase(noun("Mann")),
            ),
            {},
            ("Das Haus wurde vom Mann gebaut", "The house was built by the man"),
        ),
        (
            clause(
                "perfect",
                grammar.NounPhrase(noun("Haus")),
                ("bauen", "A:", "build"),
                accusative=None,
                passive=True,
            ),
            {},
            ("Das Haus ist schon gebaut worden", "The house has already been built"),
        ),
        (
            clause(
                "past",
                grammar.Pronoun("1s"),
                ("freuen", "rP", "be happy"),
                accusative=None,
                spoken=True,
                prepositional=("über", "acc", "about", grammar.NounPhrase(noun("Brief"))),
            ),
            {},
            ("Ich habe mich über den Brief gefreut", "I was happy about the letter"),
        ),
        (
            clause(
                "past",
                grammar.Pronoun("1p"),
                ("fahren", "G", "go"),
                accusative=None,
                spoken=True,
                place=(["nach", "Wien"], ["to", "Vienna"]),
            ),
            {"order": "final"},
            ("Wir nach Wien gefahren sind", "We went to Vienna"),
        ),
        (
            clause(
                verb=("geben", "DA:", "give"),
                dative=grammar.NounPhrase(noun("Kind")),
                accusative=grammar.NounPhrase(noun("Buch")),
            ),
            {},
            ("Anna gibt dem Kind das Buch", "Anna gives the child the book"),
        ),
        (
            clause(
                verb=("geben", "DA:", "give"),
                dative=grammar.NounPhrase(noun("Kind")),
                accusative=grammar.Pronoun("3n"),
            ),
            {},
            ("Anna gibt es dem Kind", "Anna gives it to the child"),
        ),
        (
            clause(
                "since",
                grammar.Pronoun("3p"),
                ("wohnen", "L", "live"),
                accusative=None,
                place=(["in", "Rom"], ["in", "Rome"]),
                time=(["seit", "drei", "Jahren"], ["for", "three", "years"]),
            ),
            {},
            ("Sie wohnen seit drei Jahren in Rom", "They have lived in Rome for three years"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_word_order_and_tenses(made, order, expected):
    english = {"first": "question", "zu": "to"}.get(order.get("order"), "plain")
    assert said(made.german(**order), made.english(english)) == expected


def test_relative_clauses():
    head = grammar.NounPhrase(noun("Frau"), "p")
    helped = grammar.Clause(
        grammar.Pronoun("1s"),
        ("helfen", "D", "help"),
        "past",
        spoken=True,
        dative=grammar.relative_pronoun(head),
    )
    head.relative = helped, "dative"
    assert grammar.german_relative(head) == ", denen ich geholfen habe ,".split()
    assert grammar.english_relative(head) == "whom I helped".split()


def test_a_or_an_and_prepositions_with_articles():
    assert " ".join(
        grammar.articles("a apple a university a honest man a hour a useful egg".split())
    ) == ("an apple a university an honest man an hour a useful egg")
    park, school = grammar.NounPhrase(noun("Park")), grammar.NounPhrase(noun("Schule"))
    assert grammar.with_preposition("in", park, "dat") == ["im", "Park"]
    assert grammar.with_preposition("zu", school, "dat") == ["zur", "Schule"]
    assert grammar.with_preposition("in", school, "acc") == ["in", "die", "Schule"]


def test_numbers():
    assert [grammar.number_words(n) for n in (7, 16, 40, 21)] == [
        ("sieben", "seven"),
        ("sechzehn", "sixteen"),
        ("vierzig", "forty"),
        ("einundzwanzig", "twenty-one"),
    ]


# -- the corpus ------------------------------------------------------------------------------------


def test_splits_share_no_sentence_on_either_side(splits):
    assert [len(split) for split in splits] == [12000, 507, 503]
    assert all(
        len(split) % 8 for split in splits[1:]
    )  # the sizes that fairseq's main branch would cut
    for side in (0, 1):
        everything = [pair[side] for split in splits for pair in split]
        assert len(set(everything)) == len(everything)


def test_vocabulary_and_length(splits):
    german = [pair[0] for split in splits for pair in split]
    words = {word for sentence in german for word in sentence.replace(",", "").rstrip(".?").split()}
    assert len(words) >= 3000
    assert 8 <= sum(len(sentence.split()) for sentence in german) / len(german) <= 14


def test_surface_of_the_sentences(splits):
    for split in splits:
        for pair in split:
            for sentence in pair:
                assert sentence[0].isupper() and sentence[-1] in ".?"
                assert (
                    "  " not in sentence
                    and ",." not in sentence
                    and ",?" not in sentence
                    and ",," not in sentence
                )
            assert (pair[0][-1] == "?") == (pair[1][-1] == "?")


def test_subordinate_clauses_end_in_a_finite_verb(splits):
    verbs = [grammar.Verb(use[0]) for use in grammar.USES + grammar.ANIMAL_USES + [grammar.BE]]
    verbs += [grammar.HABEN, grammar.SEIN, grammar.WERDEN]
    persons = [(person, number) for number in "sp" for person in (1, 2, 3)]
    finite = {
        verb.prefix + form(*p)
        for verb in verbs
        for form in (verb.present, verb.past)
        for p in persons
    }
    finite |= {
        grammar._modal(modal, tense, *p)
        for modal, row in grammar.MODALS.items()
        for tense in ("present", "past")
        for p in persons
        if tense == "present" or row[4]
    }
    ends = [
        pair[0].rstrip(".").split()[-1]
        for split in splits
        for pair in split
        if any(f", {word} " in pair[0] for word in ("dass", "weil", "obwohl", "bevor", "ob"))
        and pair[0].count(",") == 1
    ]
    assert len(ends) > 1000
    assert set(ends) <= finite


def test_every_construction_occurs(splits):
    text = "\n".join(pair[0] for pair in splits[0])
    for sign in (
        ", weil ",
        ", dass ",
        ", der ",
        ", die ",
        "Wenn ",
        " um ",
        " zu ",
        " worden",
        " würde",
        "nicht",
        " kein",
        "?",
        ", ob ",
        "gern",
    ):
        assert text.count(sign) > 20, sign


# sha256 of the 70 pairs below, recorded once with Python 3.11; 3.8, 3.12 and 3.13 gave the same
# bytes.
SAMPLE = "7acdb2f59a80695a335ab563c3f8310faa14c317732c80f3ee91adf23924d959"


def test_the_same_seed_gives_the_same_bytes():
    pairs = [pair for split in grammar.corpus(1, [50, 11, 9]) for pair in split]
    assert (
        hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest() == SAMPLE
    )
    assert grammar.corpus(2, [50])[0] != grammar.corpus(1, [50])[0]


def test_command_writes_six_files_and_is_repeatable(tmp_path):
    def make(*arguments):
        command = [sys.executable, os.path.join(FOLDER, "grammar.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    for name in ("a", "b"):
        assert (
            make(
                "--out",
                str(tmp_path / name),
                "--seed",
                "7",
                "--train",
                "30",
                "--valid",
                "5",
                "--test",
                "3",
            ).returncode
            == 0
        )
    names = sorted(
        f"{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")
    )
    assert sorted(os.listdir(tmp_path / "a")) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert len((tmp_path / "a" / "train.de").read_text(encoding="utf-8").splitlines()) == 30
    bad = make("--out", str(tmp_path / "c"), "--valid", "0")
    assert bad.returncode == 2 and "--valid is 0; it must be at least 1" in bad.stderr
    (tmp_path / "file").write_text("")
    bad = make("--out", str(tmp_path / "file"))
    assert bad.returncode == 2 and len(bad.stderr.strip().splitlines()) == 1
