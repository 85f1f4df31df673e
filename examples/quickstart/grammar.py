"""Writes a small German-English parallel corpus from a grammar, so that the quickstart needs no
download.

    python grammar.py --out DIR --seed 1 --train 12000 --valid 507 --test 503

DIR gets {train,valid,test}.{de,en}: raw cased text, a sentence a line. A sentence is drawn as an
abstract clause and said twice. What a model has to learn is what German does and English does not:
case and gender, verbs in second and in last place, separable verbs and kein. No sentence of either
language occurs twice, so no test sentence is in train. One seed gives the same bytes on every
Python.
"""

import argparse
import os
import random
import re
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from fairseq_klang.errors import KlangError, exit_status
from fairseq_klang.files import written

T = TypeVar("T")
Pair = Tuple[List[str], List[str]]  # German and English words

# -- words -----------------------------------------------------------------------------------------

# gender, German singular and plural, English singular and, where it is not regular, plural
NOUNS = {
    "person": """m Bäcker Bäcker baker; m Lehrer Lehrer teacher; f Lehrerin Lehrerinnen teacher; m
Arzt Ärzte doctor; f Ärztin Ärztinnen doctor; f Nachbarin Nachbarinnen neighbour; m Maler Maler
painter; f Schwester Schwestern sister; m Bruder Brüder brother; f Tante Tanten aunt; m Onkel Onkel
uncle; f Tochter Töchter daughter; m Sohn Söhne son; n Kind Kinder child children; n Mädchen Mädchen
girl; f Frau Frauen woman women; m Mann Männer man men; m Fahrer Fahrer driver; m Gast Gäste guest;
f Sängerin Sängerinnen singer; m König Könige king; f Köchin Köchinnen cook; m Freund Freunde
friend""",
    "animal": """m Hund Hunde dog; f Katze Katzen cat; n Pferd Pferde horse; m Vogel Vögel bird; f
Kuh Kühe cow; n Schaf Schafe sheep sheep; f Maus Mäuse mouse mice; m Fuchs Füchse fox; f Ente Enten
duck; f Ziege Ziegen goat""",
    "thing": """n Buch Bücher book; m Brief Briefe letter; n Bild Bilder picture; m Stuhl Stühle
chair; f Tasche Taschen bag; m Schlüssel Schlüssel key; f Lampe Lampen lamp; f Uhr Uhren clock; n
Fahrrad Fahrräder bicycle; m Hut Hüte hat; f Jacke Jacken jacket; m Teller Teller plate; f Flasche
Flaschen bottle; n Messer Messer knife knives; m Koffer Koffer suitcase; f Zeitung Zeitungen
newspaper; n Geschenk Geschenke present; f Karte Karten map; m Ball Bälle ball; m Tisch Tische
table; f Tür Türen door; n Fenster Fenster window; m Schrank Schränke cupboard""",
    "food": """m Apfel Äpfel apple; f Birne Birnen pear; m Kuchen Kuchen cake; f Suppe Suppen soup;
n Ei Eier egg; f Kartoffel Kartoffeln potato potatoes; f Tomate Tomaten tomato tomatoes; m Pilz
Pilze mushroom; f Kirsche Kirschen cherry""",
    "place": """n Haus Häuser house; f Küche Küchen kitchen; m Garten Gärten garden; n Dorf Dörfer
village; f Stadt Städte town; m Park Parks park; m Hof Höfe yard; m Wald Wälder forest; f Kirche
Kirchen church; m Turm Türme tower; f Brücke Brücken bridge; m Bahnhof Bahnhöfe station; f Schule
Schulen school; n Museum Museen museum; m Laden Läden shop; n Zimmer Zimmer room""",
}
PREPOSITIONS = [("in", "in"), ("in", "in"), ("vor", "in front of"), ("hinter", "behind"),
                ("neben", "next to")]  # fmt: skip
ADJECTIVES = """alt old; neu new; klein small; groß big; jung young; schön beautiful; rot red; grün
green; blau blue; schwarz black; weiß white; schwer heavy; leicht light; billig cheap; sauber clean;
schmutzig dirty; freundlich friendly; faul lazy; lang long; kurz short; fremd strange; ruhig quiet;
wichtig important; seltsam odd"""
NAMES = "Anna Paul Lena Jonas Maria Felix Eva Tom Nora Emil Clara Oskar Ida Max".split()
# German nominative, accusative, dative; person (1, 3) and number; English subject and object
PRONOUNS = """ich mich mir 1s I me; er ihn ihm 3s he him; sie sie ihr 3s she her; wir uns uns 1p we
us; sie sie ihnen 3p they them"""
# by what they take: infinitive (prefix+base), third person, participle, auxiliary (h, s); English
# infinitive (look_for), past where it is not regular
VERBS = {
    "": """schlafen schläft geschlafen h sleep slept; arbeiten arbeitet gearbeitet h work; warten
wartet gewartet h wait; auf+stehen steht aufgestanden s get_up got_up; tanzen tanzt getanzt h dance;
singen singt gesungen h sing sang; lachen lacht gelacht h laugh; spielen spielt gespielt h play;
an+kommen kommt angekommen s arrive; weg+laufen läuft weggelaufen s run_away ran_away; ein+schlafen
schläft eingeschlafen s fall_asleep fell_asleep; weinen weint geweint h cry""",
    "person": """besuchen besucht besucht h visit; an+rufen ruft angerufen h call; ein+laden lädt
eingeladen h invite; ab+holen holt abgeholt h pick_up; grüßen grüßt gegrüßt h greet; kennen+lernen
lernt kennengelernt h meet met; an+sehen sieht angesehen h look_at""",
    "animal": """jagen jagt gejagt h chase; fangen fängt gefangen h catch caught; suchen sucht
gesucht h look_for; sehen sieht gesehen h see saw; malen malt gemalt h paint""",
    "thing": """kaufen kauft gekauft h buy bought; ein+packen packt eingepackt h pack; verlieren
verliert verloren h lose lost; tragen trägt getragen h carry; weg+werfen wirft weggeworfen h
throw_away threw_away; verkaufen verkauft verkauft h sell sold; finden findet gefunden h find found;
vergessen vergisst vergessen h forget forgot; mit+nehmen nimmt mitgenommen h take took; putzen putzt
geputzt h clean; weg+stellen stellt weggestellt h put_away put_away; auf+heben hebt aufgehoben h
pick_up; zeichnen zeichnet gezeichnet h draw drew; verstecken versteckt versteckt h hide hid""",
    "food": """essen isst gegessen h eat ate; kochen kocht gekocht h cook; schneiden schneidet
geschnitten h cut cut; probieren probiert probiert h try; bestellen bestellt bestellt h order""",
    "dative": """helfen hilft geholfen h help; danken dankt gedankt h thank; folgen folgt gefolgt s
follow; antworten antwortet geantwortet h answer; zu+hören hört zugehört h listen_to""",
    "both": """geben gibt gegeben h give gave; zeigen zeigt gezeigt h show; schicken schickt
geschickt h send sent; leihen leiht geliehen h lend lent; schenken schenkt geschenkt h give gave""",
    "that": """sagen sagt gesagt h say said; glauben glaubt geglaubt h believe; hoffen hofft gehofft
h hope; hören hört gehört h hear heard; vergessen vergisst vergessen h forget forgot""",
}
MODALS = {  # German first and third person singular, plural; English, a verb where it ends in "to"
    "will": ("werde", "wird", "werden"),
    "can": ("kann", "kann", "können"),
    "have to": ("muss", "muss", "müssen"),
    "want to": ("will", "will", "wollen"),
}
TIMES = {  # by tense
    "present": """heute today; jetzt now; jeden_Tag every_day; jeden_Morgen every_morning; am_Abend
in_the_evening; im_Sommer in_summer; oft often; manchmal sometimes; immer_wieder again_and_again""",
    "past": """gestern yesterday; gestern_Abend last_night; letzte_Woche last_week; am_Montag
on_Monday; am_Freitag on_Friday; vor_zwei_Tagen two_days_ago; vor_einem_Jahr a_year_ago""",
    "future": """morgen tomorrow; morgen_früh tomorrow_morning; nächste_Woche next_week; bald soon;
am_Sonntag on_Sunday; in_drei_Tagen in_three_days""",
}
CONJUNCTIONS = [("weil", "because"), ("obwohl", "although"), ("wenn", "if"), ("bevor", "before"),
                ("während", "while")]  # fmt: skip
DEGREES = [("", ""), ("sehr", "very"), ("zu", "too"), ("nicht", "not"), ("ziemlich", "quite")]

CASES = ("nom", "acc", "dat")
# of dieser, and of an adjective without an article, by gender (p: all plurals), in the three cases
STRONG = {"m": "er en em", "f": "e e er", "n": "es es em", "p": "e e en"}
DEFINITE = {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die den"}
POSSESSIVES = [("mein", "my"), ("unser", "our"), ("sein", "his"), ("ihr", "her"), ("dein", "your")]


def rows(table: str) -> List[List[str]]:
    """The entries of a table, each as its columns; "_" stands for a blank in a column."""
    return [[w.replace("_", " ") for w in entry.split()] for entry in table.split(";")]


# -- inflection ------------------------------------------------------------------------------------


def adjective_ending(kind: str, case: str, gender: str) -> str:
    """The ending after der ("weak"), ein ("mixed"), or no article ("strong")."""
    strong = STRONG[gender].split()[CASES.index(case)]
    if kind == "strong" or (kind == "mixed" and not ein_ending(case, gender)):
        return strong
    if gender == "p" or case == "dat" or (case == "acc" and gender == "m"):
        return "en"
    return "e"


def ein_ending(case: str, gender: str) -> str:
    """The ending of ein, kein, mein."""
    bare = (case, gender) in (("nom", "m"), ("nom", "n"), ("acc", "n"))
    return "" if bare else STRONG[gender].split()[CASES.index(case)]


def add_s(word: str) -> str:
    """An English plural or third person."""
    if word.endswith(("s", "x", "z", "ch", "sh", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def english_past(verb: str) -> str:
    """The past of a regular English verb, of "look for" too."""
    head, blank, rest = verb.partition(" ")
    if head.endswith("y") and head[-2] not in "aeiou":
        head = head[:-1] + "i"
    return head + ("d" if head.endswith("e") else "ed") + blank + rest


class Phrase(NamedTuple):
    """A noun phrase: German by case, English as subject and object, and what verbs agree with."""

    german: Dict[str, List[str]]
    english: Tuple[List[str], List[str]]
    person: str  # 1s, 1p, 3s, 3p
    indefinite: bool = False  # its negation is kein
    gender: str = ""  # of a noun, p for a plural


class Verb:
    """One row of VERBS."""

    def __init__(self, row: Sequence[str]) -> None:
        infinitive, self.third, self.participle, auxiliary, self.english = row[:5]
        self.prefix, _, self.base = infinitive.rpartition("+")
        self.auxiliary = ("habe hat haben" if auxiliary == "h" else "bin ist sind").split()
        self.past = row[5] if len(row) > 5 else english_past(self.english)

    def german(self, tense: str, person: str) -> Tuple[str, List[str]]:
        """The finite verb, and what stands at the end of a main clause."""
        which = {"1s": 0, "3s": 1}.get(person, 2)
        if tense == "present":
            present = (self.base[:-1], self.third, self.base)
            return present[which], [self.prefix] if self.prefix else []
        if tense == "past":
            return self.auxiliary[which], [self.participle]
        return MODALS[tense][which], [self.prefix + self.base]

    def in_english(self, tense: str, person: str, support: bool) -> Tuple[List[str], List[str]]:
        """Auxiliary and the rest. support: of a negation or question, which need an auxiliary."""
        if tense in ("will", "can"):
            return [tense], [self.english]
        base = self.english if tense in ("present", "past") else f"{tense} {self.english}"
        if support:
            return ["did" if tense == "past" else "does" if person == "3s" else "do"], [base]
        if tense == "past":
            return [], [self.past]
        head, blank, rest = base.partition(" ")
        third = "has" if head == "have" else add_s(head)
        return [], [(third if person == "3s" else head) + blank + rest]


class Clause(NamedTuple):
    """Who does what, when and where; `middle` is all but subject and verb."""

    subject: Phrase
    verb: Verb
    tense: str
    middle: Pair
    time: Optional[Pair] = None
    negated: bool = False  # by nicht, or by kein in `middle`

    def german(self, first: Optional[List[str]] = None, final: bool = False) -> List[str]:
        """The words. first: what stands before the verb in place of the subject, [] for a question
        or after a clause; final: the verb comes last, as in a subordinate clause."""
        subject, middle = self.subject.german["nom"], self.middle[0]
        time = self.time[0] if self.time and first != self.time[0] else []
        finite, end = self.verb.german(self.tense, self.subject.person)
        if final:
            joined = [self.verb.prefix + finite] if self.tense == "present" else [*end, finite]
            return [*subject, *time, *middle, *joined]
        if first is None:
            return [*subject, finite, *time, *middle, *end]
        return [*first, finite, *subject, *time, *middle, *end]

    def english(self, question: bool = False) -> List[str]:
        """The words; a question begins with its auxiliary."""
        person = self.subject.person
        auxiliary, rest = self.verb.in_english(self.tense, person, self.negated or question)
        negation = ["not"] if self.negated else []
        words = [*negation, *rest, *self.middle[1], *(self.time[1] if self.time else [])]
        subject = self.subject.english[0]
        return [*auxiliary, *subject, *words] if question else [*subject, *auxiliary, *words]


# -- drawing ---------------------------------------------------------------------------------------


class Speaker:
    """Draws sentences; all choices come from one random.Random(seed).random()."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random
        self.nouns = {kind: rows(table) for kind, table in NOUNS.items()}
        self.verbs = {kind: [Verb(row) for row in rows(t)] for kind, t in VERBS.items()}
        self.times = {tense: rows(table) for tense, table in TIMES.items()}
        self.adjectives, self.pronouns = rows(ADJECTIVES), rows(PRONOUNS)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self._random() * len(items))]

    def noun(self, kind: str, negated: bool = False) -> Phrase:
        """A noun with an article and maybe an adjective; kein in place of ein if negated."""
        gender, singular, plural, english, *more = self.pick(self.nouns[kind])
        if self.chance(0.3):
            gender, english = "p", more[0] if more else add_s(english)
        inflected = plural if gender == "p" else singular
        endings = STRONG[gender].split()
        eins = [ein_ending(case, gender) for case in CASES]
        german, declension = DEFINITE[gender].split(), "weak"
        article, choice = "the", self._random()
        indefinite = choice < 0.3
        if indefinite:
            article = "" if gender == "p" else "a"
            german = [("kein" if negated else "ein") + ending for ending in eins]
            declension = "mixed"
            if gender == "p" and not negated:  # no article at all
                german, declension = [""] * 3, "strong"
        elif choice < 0.4:
            german = ["dies" + ending for ending in endings]
            article = "these" if gender == "p" else "this"
        elif choice < 0.55:
            stem, article = self.pick(POSSESSIVES)
            german, declension = [stem + ending for ending in eins], "mixed"
        adjective = self.pick(self.adjectives) if self.chance(0.35) else None
        forms = {}
        for case, word in zip(CASES, german):
            forms[case] = [word] if word else []
            if adjective:
                ending = adjective_ending(declension, case, gender)
                forms[case].append(adjective[0] + ending)
            dative = gender == "p" and case == "dat" and inflected[-1] not in "ns"
            forms[case].append(inflected + ("n" if dative else ""))
        words = [word for word in (article, adjective[1] if adjective else "", english) if word]
        return Phrase(forms, (words, words), "3p" if gender == "p" else "3s", indefinite, gender)

    def someone(self, pronouns: float = 0.25) -> Phrase:
        """Who acts or is acted on: a pronoun with that probability, a name, or a noun."""
        if self.chance(pronouns):
            *forms, person, subject, as_object = self.pick(self.pronouns)
            german = {case: [form] for case, form in zip(CASES, forms)}
            return Phrase(german, ([subject], [as_object]), person)
        if self.chance(0.25):
            name = [self.pick(NAMES)]
            return Phrase({case: name for case in CASES}, (name, name), "3s")
        return self.noun("person" if self.chance(0.85) else "animal")

    def place(self) -> Pair:
        """Where: a preposition with a dative."""
        (german, english), noun = self.pick(PREPOSITIONS), self.noun("place")
        words = noun.german["dat"]
        if (german, words[0]) == ("in", "dem"):
            german, words = "im", words[1:]
        return [german, *words], [*english.split(), *noun.english[1]]

    def clause(
        self, subject: Optional[Phrase] = None, tense: Optional[str] = None, negation: float = 0.15
    ) -> Clause:
        """A clause, with this subject and tense where given; negation: the probability of it."""
        subject = subject or self.someone()
        tense = tense or self.pick(["present"] * 4 + ["past"] * 4 + list(MODALS))
        negated, kind = self.chance(negation), self.pick([kind for kind in VERBS if kind != "that"])
        german: List[str] = []
        english: List[str] = []
        kein = False
        if kind == "both":
            whom, what = self.someone(0), self.noun("thing", negated)
            german, english = whom.german["dat"] + what.german["acc"], [*what.english[1], "to"]
            english, kein = english + whom.english[1], what.indefinite
        elif kind:
            people = kind in ("person", "dative")
            what = self.noun("person" if people else kind, negated)
            if people and not negated and self.chance(0.5):
                what = self.someone()
            german, english = what.german["dat" if kind == "dative" else "acc"], what.english[1]
            kein = what.indefinite
        if negated and not kein:
            german = [*german, "nicht"]
        if self.chance(0.3):
            where = self.place()
            german, english = german + where[0], english + where[1]
        when = tense if tense in ("present", "past") else "future"
        time = [part.split(" ") for part in self.pick(self.times[when])]
        pair = (time[0], time[1]) if self.chance(0.4) else None
        verb = self.pick(self.verbs[kind])
        return Clause(subject, verb, tense, (german, english), pair, negated)

    def main(self) -> Pair:
        """A main clause, in German with the time in the first place half of the time."""
        clause = self.clause()
        first = clause.time[0] if clause.time and self.chance(0.5) else None
        return clause.german(first), clause.english()

    def question(self) -> Pair:
        """With or without a question word."""
        german, english = self.pick([("", ""), ("", ""), ("wann", "when"), ("warum", "why")])
        clause = self.clause(negation=0)
        if german == "wann":
            clause = clause._replace(time=None)
        words = [*english.split(), *clause.english(question=True), "?"]
        return [*clause.german(german.split()), "?"], words

    def subordinate(self) -> Pair:
        """Two clauses; the subordinate one comes first or last."""
        tense = self.pick(["present", "past"])
        main, side = self.clause(tense=tense), self.clause(tense=tense)
        german, english = self.pick(CONJUNCTIONS)
        side_german, side_english = [german, *side.german(final=True)], [english, *side.english()]
        if self.chance(0.4):
            return [*side_german, ",", *main.german([])], [*side_english, ",", *main.english()]
        return [*main.german(), ",", *side_german], [*main.english(), *side_english]

    def that(self) -> Pair:
        """Somebody says that."""
        verb, tense = self.pick(self.verbs["that"]), self.pick(["present", "past"])
        outer = Clause(self.someone(), verb, tense, ([], []))
        inner = self.clause()
        german = [*outer.german(), ",", "dass", *inner.german(final=True)]
        return german, [*outer.english(), "that", *inner.english()]

    def purpose(self) -> Pair:
        """A main clause and um ... zu; the zu of a separable verb stands inside it."""
        (german, english), inner = self.main(), self.clause(tense="present")
        verb, nicht = inner.verb, ["not"] if inner.negated else []
        zu = [verb.prefix + "zu" + verb.base] if verb.prefix else ["zu", verb.base]
        words = [*english, *nicht, "to", verb.english, *inner.middle[1]]
        return [*german, ",", "um", *inner.middle[0], *zu], words

    def state(self) -> Pair:
        """How somebody or something is."""
        subject = self.someone() if self.chance(0.5) else self.noun(self.pick(list(NOUNS)))
        past, which = self.chance(0.4), {"1s": 0, "3s": 1}.get(subject.person, 2)
        forms = "war was war was waren were" if past else "bin am ist is sind are"
        german, english = forms.split()[2 * which : 2 * which + 2]
        (degree, very), (adjective, words) = self.pick(DEGREES), self.pick(self.adjectives)
        english_words = [*subject.english[0], english, *very.split(), words]
        return [*subject.german["nom"], german, *degree.split(), adjective], english_words

    def relative(self) -> Pair:
        """A subject with a relative clause."""
        noun = self.noun("person")
        pronoun = DEFINITE[noun.gender].split()[0]
        who = Phrase({"nom": [pronoun]}, (["who"], ["who"]), noun.person)
        inner = self.clause(who)
        german = [*noun.german["nom"], ",", *inner.german(final=True), ","]
        english = [*noun.english[0], *inner.english()]
        clause = self.clause(Phrase({"nom": german}, (english, english), noun.person))
        return clause.german(), clause.english()

    def coordinated(self) -> Pair:
        """Two main clauses."""
        german, english = self.pick([("und", "and"), (", aber", ", but"), (", denn", ", for")])
        (first, one), (second, two) = self.main(), self.main()
        return [*first, *german.split(), *second], [*one, *english.split(), *two]

    def sentence(self) -> Tuple[str, str]:
        """A pair of sentences."""
        kinds = [self.main] * 7 + [self.question, self.subordinate] * 3
        kinds += [self.state, self.that, self.purpose, self.relative, self.coordinated] * 2
        german, english = self.pick(kinds)()
        return spell(german), spell(english)


def spell(words: Sequence[str]) -> str:
    """A sentence from its words: end mark, commas attached, an before a vowel, a capital."""
    text = " ".join(words if words[-1] == "?" else [*words, "."])
    for old, new in ((" ,", ","), (",,", ","), (" .", "."), (",.", "."), (" ?", "?"), (",?", "?")):
        text = text.replace(old, new)
    text = re.sub(r"\ba (?=[aeiou])", "an ", text.replace("can not", "cannot"))
    return text[0].upper() + text[1:]


def corpus(seed: int, sizes: Sequence[int]) -> List[List[Tuple[str, str]]]:
    """A list of pairs for each size; no sentence of either language occurs twice in all of them.

    Raises KlangError when more sentences are asked for than the grammar has.
    """
    speaker = Speaker(seed)
    seen: Set[str] = set()
    splits, failures = [], 0
    for size in sizes:
        pairs: List[Tuple[str, str]] = []
        while len(pairs) < size:
            pair = speaker.sentence()
            if seen.isdisjoint(pair):
                pairs.append(pair)
                seen.update(pair)
                continue
            failures += 1
            if failures > 1000 + sum(sizes):
                raise KlangError(f"the grammar has no {sum(sizes)} sentences; ask for fewer")
        splits.append(pairs)
    return splits


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Writes a small German-English corpus.")
    parser.add_argument("--out", required=True, help="folder for {train,valid,test}.{de,en}")
    parser.add_argument("--seed", type=int, default=1)
    for split, size in (("train", 12000), ("valid", 507), ("test", 503)):
        parser.add_argument(
            f"--{split}", type=int, default=size, help="pairs (default: %(default)s)"
        )
    options = parser.parse_args(arguments)

    def write() -> None:
        sizes = {split: getattr(options, split) for split in ("train", "valid", "test")}
        for split, size in sizes.items():
            if size < 1:
                raise KlangError(f"--{split} is {size}; it must be at least 1")
        os.makedirs(options.out, exist_ok=True)
        for split, pairs in zip(sizes, corpus(options.seed, list(sizes.values()))):
            for side, language in enumerate(("de", "en")):
                with written(os.path.join(options.out, f"{split}.{language}")) as stream:
                    stream.writelines(pair[side] + "\n" for pair in pairs)
        told = ", ".join(f"{size} {split}" for split, size in sizes.items())
        print(f"wrote {told} pairs to {options.out}")

    return exit_status("grammar.py", write)


if __name__ == "__main__":
    sys.exit(main())
