"""Writes a German-English parallel corpus from a grammar of its own, so that the quickstart needs
no download.

    python grammar.py --out DIR --seed 1 --train 12000 --valid 507 --test 503

DIR gets {train,valid,test}.{de,en}: raw cased text with punctuation, a sentence a line. A sentence
is drawn as one abstract clause (who does what to whom, when, where) and spelled out twice: German
with its cases, adjective endings, verb-second and verb-final order, separable verbs and compounds;
English with do-support, progressives and perfects. Both sides of every pair are new: no sentence,
German or English, occurs twice in the three files of a language. The same numbers give the same
bytes on every Python, since all choices come from random.Random(seed).random().
"""

import argparse
import os
import random
import sys

import lexicon

CASES = ("nom", "acc", "dat", "gen")


# -- German: articles, adjectives, nouns
# ------------------------------------------------------------------------- A gender slot is "m",
# "f", "n" or, for all plurals, "p".

ENDINGS = {  # of dieser, jeder, welcher; also of an adjective that has no article before it
    "m": {"nom": "er", "acc": "en", "dat": "em", "gen": "es"},
    "f": {"nom": "e", "acc": "e", "dat": "er", "gen": "er"},
    "n": {"nom": "es", "acc": "es", "dat": "em", "gen": "es"},
    "p": {"nom": "e", "acc": "e", "dat": "en", "gen": "er"},
}


def definite(case, slot):
    """der, die, das in a case and gender slot."""
    ending = ENDINGS[slot][case]
    return "d" + {"e": "ie", "es": "es" if case == "gen" else "as"}.get(ending, ending)


def ein_word(stem, case, slot):
    """ein, kein and the possessives; euer loses its e before an ending."""
    bare = (case == "nom" and slot in "mn") or (case == "acc" and slot == "n")
    if bare:
        return stem
    return ("eur" if stem == "euer" else stem) + ENDINGS[slot][case]


def adjective_ending(kind, case, slot):
    """The ending after der-words ("weak"), after ein-words ("mixed") and without either
    ("strong")."""
    if kind == "strong":
        return "en" if case == "gen" and slot in "mn" else ENDINGS[slot][case]
    if slot == "p" or case in ("dat", "gen") or (case == "acc" and slot == "m"):
        return "en"
    return "e" if kind == "weak" else ENDINGS[slot][case]


class Noun:
    """One meaning of a German noun and its English noun; `weak` nouns end in -n in all cases but
    the nominative."""

    def __init__(self, gender, singular, genitive, plural, english, classes):
        self.gender, self.weak = gender[0], gender == "mw"
        self.singular, self.plural = singular, plural
        self.genitive = singular if genitive == "-" else genitive
        self.english = english
        self.tags = classes.split(",")
        self.base = (singular, english)

    @property
    def mass(self):
        return "mass" in self.tags

    def german(self, case, number):
        if number == "p":
            return self.plural + ("n" if case == "dat" and self.plural[-1] not in "ns" else "")
        if case == "gen" or (self.weak and case != "nom"):
            return self.genitive
        return self.singular

    def with_first_part(self, german, english):
        """The compound of a first part ("Küchen", "kitchen") with this noun: Küchentür, kitchen
        door."""
        compound = Noun.__new__(Noun)
        compound.__dict__.update(self.__dict__)
        for name in ("singular", "genitive", "plural"):
            word = getattr(self, name)
            setattr(compound, name, word if word == "-" else german + word.lower())
        compound.english = english + " " + self.english
        return compound


# -- German: verbs ---------------------------------------------------------------------------------

INSEPARABLE = ("be", "ver", "er", "ent", "emp", "zer", "ge", "miss")
STRONG = {row[0]: row[1:] for row in lexicon.rows(lexicon.STRONG_VERBS)}
MODALS = {  # present: first and third person, second person, plural, "ihr"; preterite
    "können": ("kann", "kannst", "können", "könnt", "konnte"),
    "müssen": ("muss", "musst", "müssen", "müsst", "musste"),
    "wollen": ("will", "willst", "wollen", "wollt", "wollte"),
    "sollen": ("soll", "sollst", "sollen", "sollt", "sollte"),
    "dürfen": ("darf", "darfst", "dürfen", "dürft", "durfte"),
    "möchten": ("möchte", "möchtest", "möchten", "möchtet", None),
    "mögen": ("mag", "magst", "mögen", "mögt", "mochte"),
    "wissen": ("weiß", "weißt", "wissen", "wisst", "wusste"),
}
UNREAL = {"werden": "würde", "haben": "hätte", "sein": "wäre"}


def _stem(infinitive):
    return infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]


def _needs_e(stem):
    """Whether an e stands before -t and -st: arbeitet, öffnet, rechnet, but lernt and wohnt."""
    return stem[-1] in "td" or stem.endswith("chn") or (stem[-1] in "mn" and stem[-2] in "fgtdk")


class Verb:
    """A German verb; a separable prefix is marked by '+' (auf+machen)."""

    def __init__(self, infinitive):
        self.prefix, _, base = infinitive.rpartition("+")
        self.base = base
        self.stem = _stem(base)
        if base in STRONG:
            present, self.preterite, participle, self.auxiliary = STRONG[base]
            self.second, _, self.third = present.rpartition("/")
        else:
            t = "et" if _needs_e(self.stem) else "t"
            self.second, self.third, self.preterite = "", self.stem + t, self.stem + t + "e"
            bare = base.startswith(INSEPARABLE) or base.endswith("ieren")
            participle, self.auxiliary = ("" if bare else "ge") + self.stem + t, "haben"
        if self.prefix in ("auf", "ein", "um", "weg", "zurück") and base in (
            "stehen",
            "schlafen",
            "wachen",
            "ziehen",
            "laufen",
            "kommen",
            "fahren",
        ):  # a change of state or place
            self.auxiliary = "sein"
        self.participle = self.prefix + participle
        self.infinitive = self.prefix + base

    def zu_infinitive(self):
        """The words of the infinitive with zu: ['aufzumachen'] or ['zu', 'machen']."""
        return [self.prefix + "zu" + self.base] if self.prefix else ["zu", self.base]

    def present(self, person, number):
        """The finite present without the prefix."""
        if self.base in MODALS:
            return _modal(self.base, "present", person, number)
        if self.base == "sein":
            return {"s1": "bin", "s2": "bist", "s3": "ist", "p2": "seid"}.get(
                number + str(person), "sind"
            )
        if number == "p":
            if person != 2:
                return self.base
            if self.third.startswith(self.stem):
                return self.third
            return self.stem + ("et" if _needs_e(self.stem) else "t")
        if person == 1:
            return self.stem + "e"
        if person == 3:
            return self.third
        if self.second:
            return self.second
        root = self.third[:-1]
        return root + ("t" if root[-1] in "sßzx" else "st")

    def past(self, person, number):
        """The finite preterite without the prefix."""
        return past_endings(self.preterite, person, number)

    def unreal(self, person, number):
        """würde, hätte, wäre."""
        return past_endings(UNREAL[self.base], person, number)


def past_endings(form, person, number):
    """Person endings of a preterite or subjunctive, given its first person."""
    if form.endswith("e"):
        return form + {"s2": "st", "p1": "n", "p2": "t", "p3": "n"}.get(number + str(person), "")
    e = "e" if form[-1] in "td" else ""
    s2 = "est" if form[-1] in "sßz" else e + "st"
    return form + {"s2": s2, "p1": "en", "p2": e + "t", "p3": "en"}.get(number + str(person), "")


def _modal(infinitive, tense, person, number):
    singular, second, plural, ihr, preterite = MODALS[infinitive]
    if tense == "past":
        return past_endings(preterite, person, number)
    if number == "s":
        return second if person == 2 else singular
    return ihr if person == 2 else plural


HABEN, SEIN, WERDEN = Verb("haben"), Verb("sein"), Verb("werden")


# -- English ---------------------------------------------------------------------------------------

IRREGULAR = {row[0]: row[1:] for row in lexicon.rows(lexicon.IRREGULAR_ENGLISH)}
PLURALS = {row[0]: row[1] for row in lexicon.rows(lexicon.IRREGULAR_PLURALS)}
VOWELS = "aeiou"
SOUNDS_CONSONANT = ("uni", "use", "one", "euro", "uk")
SOUNDS_VOWEL = ("hour", "honest", "heir")


def _add_s(word):
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do"):
        return word + "es"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def english_plural(noun):
    """The plural of an English noun or compound: children, house doors."""
    if noun in PLURALS:
        return PLURALS[noun]
    first, space, last = noun.rpartition(" ")
    return first + space + PLURALS.get(last, _add_s(last))


def english_finite(verb, past, person, number):
    """The finite form of a one-word English verb."""
    if verb == "be":
        if past:
            return "was" if number == "s" and person != 2 else "were"
        return {"s1": "am", "s3": "is"}.get(number + str(person), "are")
    if past:
        return english_past(verb)
    if number == "s" and person == 3:
        return "has" if verb == "have" else _add_s(verb)
    return verb


def english_past(verb):
    if verb in IRREGULAR:
        return IRREGULAR[verb][0]
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return verb + ("d" if verb.endswith("e") else "ed")


def english_participle(verb):
    participle = IRREGULAR.get(verb, ["", "="])[1]
    return english_past(verb) if participle == "=" else participle


def english_ing(verb):
    if len(IRREGULAR.get(verb, "")) > 2:
        return IRREGULAR[verb][2]
    return (verb[:-1] if verb.endswith("e") and verb not in ("be", "see") else verb) + "ing"


def number_words(n):
    """A number from 2 to 99 in German and English: ('dreiundzwanzig', 'twenty-three')."""
    if n < 20:
        return lexicon.UNITS_DE[n], lexicon.UNITS_EN[n]
    tens, unit = divmod(n, 10)
    german, english = lexicon.TENS_DE[tens], lexicon.TENS_EN[tens]
    if not unit:
        return german, english
    return lexicon.UNITS_DE[unit] + "und" + german, english + "-" + lexicon.UNITS_EN[unit]


# -- noun phrases ----------------------------------------------------------------------------------

# key: person, number, German nominative, accusative, dative, reflexive, possessive stem; English
# subject, object, possessive. The formal "Sie" has the forms of the third person plural.
PRONOUNS = {
    "1s": (1, "s", "ich", "mich", "mir", "mich", "mein", "I", "me", "my"),
    "2s": (2, "s", "du", "dich", "dir", "dich", "dein", "you", "you", "your"),
    "3m": (3, "s", "er", "ihn", "ihm", "sich", "sein", "he", "him", "his"),
    "3f": (3, "s", "sie", "sie", "ihr", "sich", "ihr", "she", "her", "her"),
    "3n": (3, "s", "es", "es", "ihm", "sich", "sein", "it", "it", "its"),
    "1p": (1, "p", "wir", "uns", "uns", "uns", "unser", "we", "us", "our"),
    "2p": (2, "p", "ihr", "euch", "euch", "euch", "euer", "you", "you", "your"),
    "3p": (3, "p", "sie", "sie", "ihnen", "sich", "ihr", "they", "them", "their"),
    "F": (3, "p", "Sie", "Sie", "Ihnen", "sich", "Ihr", "you", "you", "your"),
}
FEMALE = (
    "woman",
    "girl",
    "mother",
    "aunt",
    "sister",
    "daughter",
    "grandmother",
    "policewoman",
    "queen",
)
QUANTIFIERS = {  # plural determiners: German stem, adjective endings after it, English
    "all": ("all", "weak", "all the"),
    "many": ("viel", "strong", "many"),
    "few": ("wenig", "strong", "few"),
    "some": ("einig", "strong", "some"),
}


class Phrase:
    """A noun phrase. `person`, `number` and `slot` (gender slot) are what verbs and pronouns agree
    with."""

    person, number, slot = 3, "s", "m"
    pronoun = definite = animate = False
    relative = None  # a clause whose gap is this phrase

    # Every kind of phrase has german(case) and english(role), role "subject" or "object": its
    # words.

    def key(self):
        """The pronoun that stands for this phrase."""
        return "3p" if self.number == "p" else "3" + self.slot

    def english_key(self):
        """The same in English, where only people are he or she."""
        return self.key()

    def english_agreement(self):
        return self.person, self.number


class Pronoun(Phrase):
    pronoun = definite = True

    def __init__(self, key, english_key=None):
        self._key, self._english = key, english_key or key
        self.person, self.number = PRONOUNS[key][:2]
        self.slot = key[1] if key in ("3m", "3f", "3n") else "p"
        self.animate = self._english not in ("3n",)

    def german(self, case):
        return [PRONOUNS[self._key][2 + CASES.index(case)]]

    def english(self, role):
        return [PRONOUNS[self._english][7 if role == "subject" else 8]]

    def key(self):
        return self._key

    def english_key(self):
        return self._english

    def english_agreement(self):
        return (2, "p") if self._english in ("F", "2p", "2s") else PRONOUNS[self._english][:2]


class Name(Phrase):
    definite = animate = True

    def __init__(self, gender, name):
        self.slot, self.name = gender, name

    def german(self, case):
        return [self.genitive() if case == "gen" else self.name]

    def genitive(self):
        return self.name + ("'" if self.name[-1] in "sxzß" else "s")

    def english(self, role):
        return [self.name]


class Pair(Phrase):
    """Two phrases joined by und."""

    number, slot, animate = "p", "p", True

    def __init__(self, first, second):
        self.parts = first, second
        self.definite = first.definite and second.definite

    def german(self, case):
        return self.parts[0].german(case) + ["und"] + self.parts[1].german(case)

    def english(self, role):
        return self.parts[0].english(role) + ["and"] + self.parts[1].english(role)


class Gap(Phrase):
    """A relative or question pronoun: `german_forms` by case, English word by role."""

    def __init__(self, german_forms, english, like=None):
        self.forms, self.words = german_forms, english
        if like is not None:
            self.person, self.number, self.slot = 3, like.number, like.slot
            self.animate = like.animate
        self.like = like

    def german(self, case):
        return [self.forms[case]]

    def english(self, role):
        return [self.words[role]]

    def english_key(self):
        return self.like.english_key() if self.like else self.key()


WHO = Gap({"nom": "wer", "acc": "wen", "dat": "wem"}, {"subject": "who", "object": "who"})
WHAT = Gap({"nom": "was", "acc": "was"}, {"subject": "what", "object": "what"})


def relative_pronoun(head):
    forms = {case: definite(case, head.slot) for case in ("nom", "acc", "dat")}
    if head.slot == "p":
        forms["dat"] = "denen"
    word = "who" if head.animate else "that"
    return Gap(forms, {"subject": word, "object": "that" if word == "that" else "whom"}, head)


class NounPhrase(Phrase):
    """Determiner, adjectives, noun and, after it, a genitive.

    determiner: "def", "indef", "none", "kein", "this", "every", "which", a key of QUANTIFIERS, a
        number, or a
    phrase whose possessive stands first (mein Hut, Annas Hut).
    """

    def __init__(self, noun, number="s", determiner="def", adjectives=(), owner=None):
        self.noun, self.number, self.determiner = noun, number, determiner
        self.adjectives, self.owner = list(adjectives), owner
        self.slot = "p" if number == "p" else noun.gender
        self.animate = "person" in noun.tags
        self.definite = determiner not in (
            "indef",
            "none",
            "kein",
            "many",
            "few",
            "some",
        ) and not isinstance(determiner, int)

    def key(self):
        return "3p" if self.number == "p" else "3" + self.noun.gender

    def english_key(self):
        if self.number == "p":
            return "3p"
        if not self.animate:
            return "3n"
        return "3f" if self.noun.gender == "f" or self.noun.english in FEMALE else "3m"

    def _german_determiner(self, case):
        """The determiner's words and the kind of adjective ending after it."""
        kind, slot = self.determiner, self.slot
        if kind == "def":
            return [definite(case, slot)], "weak"
        if kind == "indef" and slot != "p" and not self.noun.mass:
            return [ein_word("ein", case, slot)], "mixed"
        if kind in ("indef", "none"):
            return [], "strong"
        if kind == "kein":
            return [ein_word("kein", case, slot)], "mixed"
        if kind in ("this", "every", "which"):
            stem = {"this": "dies", "every": "jed", "which": "welch"}[kind]
            return [stem + ENDINGS[slot][case]], "weak"
        if kind in QUANTIFIERS:
            stem, ending, _ = QUANTIFIERS[kind]
            return [stem + ENDINGS["p"][case]], ending
        if isinstance(kind, int):
            return [number_words(kind)[0]], "strong"
        if isinstance(kind, Name):
            return [kind.genitive()], "strong"
        return [ein_word(PRONOUNS[kind.key()][6], case, slot)], "mixed"

    def german(self, case):
        words, ending = self._german_determiner(case)
        words += [stem + adjective_ending(ending, case, self.slot) for stem, _ in self.adjectives]
        words.append(self.noun.german(case, self.number))
        return words + (self.owner.german("gen") if self.owner else [])

    def english(self, role):
        kind, plural = self.determiner, self.number == "p"
        if kind == "def" or kind == "which":
            words = ["the" if kind == "def" else "which"]
        elif kind == "indef":
            words = [] if plural or self.noun.mass else ["a"]
        elif kind == "none":
            words = []
        elif kind == "kein":
            words = ["no"] if role == "subject" else ["any"] if plural or self.noun.mass else ["a"]
        elif kind == "this":
            words = ["these" if plural else "this"]
        elif kind == "every":
            words = ["every"]
        elif kind in QUANTIFIERS:
            words = QUANTIFIERS[kind][2].split()
        elif isinstance(kind, int):
            words = [number_words(kind)[1]]
        elif isinstance(kind, Name):
            words = [kind.name + "'s"]
        else:
            words = [PRONOUNS[kind.english_key()][9]]
        noun = english_plural(self.noun.english) if plural else self.noun.english
        words = words + [english for _, english in self.adjectives] + noun.split()
        if not self.owner:
            return words
        if self.owner.animate:
            owner = self.owner.english("object")
            owner[-1] += "'" if owner[-1].endswith("s") else "'s"
            return owner + words[1:]
        return words + ["of"] + self.owner.english("object")


CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}


def with_preposition(preposition, phrase, case):
    """A German prepositional phrase, with im, zur and the like where the article is the definite
    one."""
    words = phrase.german(case)
    article = (
        isinstance(phrase, NounPhrase) and phrase.determiner == "def" and phrase.relative is None
    )
    if article and (preposition, words[0]) in CONTRACTIONS:
        return [CONTRACTIONS[preposition, words[0]]] + words[1:]
    return [preposition] + words


# -- clauses ---------------------------------------------------------------------------------------

# (German modal, past, negated): a true modal, or a verb that is followed by "to" plus infinitive
ENGLISH_MODALS = {
    ("können", False): "can",
    ("können", True): "could",
    ("sollen", False): "should",
    ("möchten", False): "would like",
    ("müssen", False): "must",
    ("dürfen", False): "may",
}
ENGLISH_SEMI_MODALS = {
    "müssen": "have to",
    "wollen": "want to",
    "dürfen": "be allowed to",
    "sollen": "be supposed to",
}


class Clause:
    """Who does what, once for both languages.

    when: now, going (in progress), past, future, since (has lasted until now), perfect, unreal.
    """

    def __init__(self, subject, use, when="now", **slots):
        self.subject, self.use, self.when = subject, use, when
        self.verb = Verb(use[0])
        self.english_verb = use[2]
        self.accusative = self.dative = self.prepositional = None
        self.place = self.means = self.time = self.predicate = (
            None  # pairs of word lists: German, English
        )
        self.frequency = self.manner = self.modal = self.agent = None
        self.negated = self.likes = self.passive = self.spoken = self.to_form = False
        self.plain_future = False  # German present with an adverb of time, not werden
        self.reflexive = use[1].startswith("r")
        self.__dict__.update(slots)

    # German

    def _german_verbs(self):
        """The finite verb, the verbs at the end, and the separable prefix."""
        agreement = self.subject.person, self.subject.number
        verb = self.verb
        infinitive = [verb.participle, "werden"] if self.passive else [verb.infinitive]
        if self.modal:
            return (
                _modal(self.modal, "past" if self.when == "past" else "present", *agreement),
                infinitive,
                "",
            )
        if self.when == "unreal":
            if verb.base in ("haben", "sein"):
                return verb.unreal(*agreement), [], ""
            return WERDEN.unreal(*agreement), infinitive, ""
        if self.when == "future" and not self.plain_future:
            return WERDEN.present(*agreement), infinitive, ""
        if self.when == "perfect" or (self.when == "past" and self.spoken):
            if self.passive:
                return SEIN.present(*agreement), [verb.participle, "worden"], ""
            auxiliary = SEIN if verb.auxiliary == "sein" else HABEN
            return auxiliary.present(*agreement), [verb.participle], ""
        head = WERDEN if self.passive else verb
        finite = head.past(*agreement) if self.when == "past" else head.present(*agreement)
        return (finite, [verb.participle], "") if self.passive else (finite, [], verb.prefix)

    def _german_slots(self):
        """(name, words) in the order of the middle field."""
        slots = [("subject", self.subject.german("nom"))]
        if self.reflexive:
            slots.append(("reflexive", [PRONOUNS[self.subject.key()][5]]))
        accusative = self.accusative
        if accusative and accusative.pronoun:
            slots.append(("accusative", accusative.german("acc")))
        if self.dative:
            slots.append(("dative", self.dative.german("dat")))
        early = (
            accusative
            and accusative.definite
            and (self.negated or self.when == "perfect" or self.likes)
        )
        object_words = accusative.german("acc") if accusative and not accusative.pronoun else []
        if early:
            slots.append(("accusative", object_words))
        if self.time:
            slots.append(("time", self.time[0]))
        adverb = [self.frequency[0]] if self.frequency else []
        if self.when == "perfect":
            adverb = ["noch", "nicht"] if self.negated else ["schon"]
        elif self.negated:
            adverb = ["nicht"]
        if self.negated and isinstance(accusative, NounPhrase) and accusative.determiner == "kein":
            adverb = ["noch"] if self.when == "perfect" else []
        slots.append(("adverb", adverb))
        if self.likes:
            slots.append(("likes", ["gern"]))
        if not early:
            slots.append(("accusative", object_words))
        if self.passive and self.agent:
            slots.append(("agent", with_preposition("von", self.agent, "dat")))
        slots += [
            ("manner", [self.manner[0]] if self.manner else []),
            ("means", self.means[0] if self.means else []),
        ]
        if self.prepositional:
            preposition, case, _, phrase = self.prepositional
            slots.append(("prepositional", with_preposition(preposition, phrase, case)))
        slots.append(("place", self.place[0] if self.place else []))
        slots.append(("predicate", self.predicate[0] if self.predicate else []))
        return [slot for slot in slots if slot[1]]

    def german(self, order="second", lead="subject", field=None):
        """The clause's words.

        order: "second" (the slot `lead`, or the words of `field`, then the verb), "first"
            (question), "final"
        (after a conjunction; `lead` comes first), "zu" (infinitive with zu, no subject).
        """
        finite, rest, prefix = self._german_verbs()
        slots = self._german_slots()
        tail = self._german_relative()
        if order == "zu":
            words = [word for name, part in slots if name != "subject" for word in part]
            return words + self.verb.zu_infinitive() + tail
        leading = field if field is not None else [] if order == "first" else dict(slots)[lead]
        dropped = None if field is not None or order == "first" else lead
        middle = [word for name, part in slots if name != dropped for word in part]
        if order == "final":
            return leading + middle + rest + [prefix + finite] + tail
        return leading + [finite] + middle + rest + ([prefix] if prefix else []) + tail

    def _german_relative(self):
        phrase = self.accusative
        if phrase is None or phrase.relative is None:
            return []
        return german_relative(phrase)

    # English

    def _english_verbs(self, question=False):
        """The auxiliary ('' without one), the other verbs, and the particle."""
        verb, _, particle = self.english_verb.partition(" +")
        particle = particle.split()
        person_number = self.subject.english_agreement()
        head, *tail = verb.split()
        stative = verb in lexicon.STATIVE or verb.startswith("be ")
        if self.passive:
            head, tail = "be", [english_participle(head)] + tail
        if self.likes:
            head, tail, stative = "like", ["to", head] + tail, True
        past, when = self.when == "past", self.when
        if self.modal:
            softer = self.modal == "müssen" and (past or self.negated or question)
            softer = (
                softer or (self.modal in ("dürfen", "sollen") and past) or self.modal == "wollen"
            )
            if self.modal == "dürfen" and not past and self.negated:
                return "must", [head] + tail, particle
            if not softer:
                modal = ENGLISH_MODALS[self.modal, past].split()
                return modal[0], (modal[1:] + ["to"] if modal[1:] else []) + [head] + tail, particle
            semi = ENGLISH_SEMI_MODALS[self.modal].split()
            head, tail, stative = semi[0], semi[1:] + [head] + tail, True
            when = "past" if past else "now"
        if when == "future":
            return "will", [head] + tail, particle
        if when == "unreal":
            return "would", [head] + tail, particle
        if when in ("perfect", "since"):
            return (
                english_finite("have", False, *person_number),
                [english_participle(head)] + tail,
                particle,
            )
        if when == "going" and not (stative and not self.passive):
            return english_finite("be", False, *person_number), [english_ing(head)] + tail, particle
        finite = english_finite(head, when == "past", *person_number)
        if head == "be":
            return finite, tail, particle
        if self.negated or question:
            return english_finite("do", when == "past", *person_number), [head] + tail, particle
        return "", [finite] + tail, particle

    def _english_objects(self, particle, gap):
        words, accusative, dative = [], self.accusative, self.dative
        direct = accusative.english("object") if accusative and gap != "accusative" else []
        if accusative and accusative.relative is not None:
            direct = direct + english_relative(accusative)
        indirect = dative.english("object") if dative and gap != "dative" else []
        movable = particle and particle[0] not in ("for", "to", "with")
        if dative and not accusative:
            return particle + indirect
        if dative:
            to_form = (
                self.to_form
                or accusative.pronoun
                or movable
                or gap
                or self.english_verb in ("recommend", "explain")
            )
            if not to_form:
                return indirect + direct
            return direct + particle + ["to"] + indirect
        if movable and direct and len(direct) <= 2 and accusative.relative is None:
            return direct + particle
        words += particle + direct
        return words

    def english(self, order="plain", gap=None, lead=()):
        """The clause's words.

        order: "plain", "question" (auxiliary before the subject), "to" and "ing" (no subject),
            "gap" (no
        subject: it stands in `lead`). gap: the object slot that `lead` replaces. lead: words that
            come first.
        """
        auxiliary, verbs, particle = self._english_verbs(order == "question")
        negation = ["not"] if self.negated and self.when != "unreal" else []
        frequency = [self.frequency[1]] if self.frequency else []
        end = []
        if self.when == "perfect":
            frequency, end = ([], ["yet"]) if self.negated else (["already"], [])
        subject = [] if order in ("to", "ing", "gap") else self.subject.english("subject")
        if order == "to":
            verb, _, _ = self.english_verb.partition(" +")
            words = ["to"] + verb.split()
        elif order == "ing":
            head, *rest = self.english_verb.partition(" +")[0].split()
            words = [english_ing(head)] + rest
        elif order == "question":
            words = [auxiliary] + subject + negation + frequency + verbs
        elif auxiliary == "can" and negation:
            words = subject + ["cannot"] + frequency + verbs
        else:
            words = subject + ([auxiliary] if auxiliary else []) + negation + frequency + verbs
        words = list(lead) + words + self._english_objects(particle, gap)
        if self.predicate:
            words += self.predicate[1]
        if self.passive and self.agent:
            words += ["by"] + self.agent.english("object")
        if self.prepositional:
            _, _, preposition, phrase = self.prepositional
            words += ([preposition] if preposition else []) + phrase.english("object")
        if self.manner:
            words += self.manner[1].split()
        for part in (self.place, self.means):
            words += part[1] if part else []
        if self.time:
            words += self.time[1]
        return words + end


def german_relative(phrase):
    clause, slot = phrase.relative
    return [","] + clause.german("final", lead=slot) + [","]


def english_relative(phrase):
    clause, slot = phrase.relative
    gap = getattr(clause, slot)
    if slot == "subject":
        return clause.english("gap", lead=gap.english("subject"))
    return clause.english("plain", gap=slot, lead=gap.english("object"))


# -- what is said: random choices
# ----------------------------------------------------------------------------------

NOUNS = [Noun(*row) for row in lexicon.rows(lexicon.NOUNS)]
BY_CLASS = {}
for _noun in NOUNS:
    for _tag in _noun.tags:
        BY_CLASS.setdefault(_tag, []).append(_noun)
MODIFIERS = [(row[0], row[1], row[2].split(",")) for row in lexicon.rows(lexicon.MODIFIERS)]
MODIFIERS += [(row[0], row[1], row[2].split(",")) for row in lexicon.rows(lexicon.TASTES)]
USES = [tuple(row) for row in lexicon.rows(lexicon.VERB_USES, "|")]
ANIMAL_USES = [tuple(row) for row in lexicon.rows(lexicon.ANIMAL_USES, "|")]
CLAUSE_USES = [use for use in USES if use[1] == "C"]
ZU_USES = [use for use in USES if use[1] == "Z"]
PLAIN_USES = [use for use in USES if use[1] not in ("C", "Z")]
PASSIVE_USES = [
    use
    for use in PLAIN_USES
    if use[1].startswith("A:")
    and use[2] not in lexicon.STATIVE
    and use[0] not in ("nehmen", "verlassen", "holen")
    or use[0] in ("finden", "sehen", "verstehen", "vergessen")
]
SINCE_USES = [
    use
    for use in PLAIN_USES
    if use[1] == "L" and use[0] in ("arbeiten", "wohnen", "leben", "lernen", "warten")
]
SINCE_USES += [use for use in PLAIN_USES if use[0] == "kennen"]
NAMES = lexicon.rows(lexicon.NAMES)
ADJECTIVES = [
    {
        "stem": row[1] if row[0] == "=" else row[0],
        "word": row[1],
        "more": row[2],
        "english": row[3],
        "english_more": row[4],
        "class": row[5],
    }
    for row in lexicon.rows(lexicon.ADJECTIVES)
]
ADJECTIVE_CLASSES = {
    "person": "any living person",
    "animal": "any living",
    "food": "food",
    "drink": "food",
    "building": "any building",
    "place": "any place",
    "abstract": "abstract",
    "event": "abstract long",
    "document": "any abstract long",
    "device": "any thing device",
    "furniture": "any thing furniture",
    "clothes": "any thing long",
    "train": "any long",
    "thing": "any thing",
    "gift": "any thing",
    "vehicle": "any thing",
    "garment": "any thing",
}
TIMES = [
    (row[0].split(), row[1].split(), row[2].split()) for row in lexicon.rows(lexicon.TIMES, "|")
]
FREQUENCIES = lexicon.rows(lexicon.FREQUENCIES)
MANNERS = lexicon.rows(lexicon.MANNERS)
PLACES = {(row[0], row[1]): row[2:] for row in lexicon.rows(lexicon.PLACES)}
CITIES = lexicon.rows(lexicon.CITIES)
COUNTRIES = lexicon.rows(lexicon.COUNTRIES_WITH_ARTICLE)
POSITIONS = lexicon.rows(lexicon.POSITIONS)
WEEKDAYS = list(zip(lexicon.WEEKDAYS.split()[::2], lexicon.WEEKDAYS.split()[1::2]))
MONTHS = list(zip(lexicon.MONTHS.split()[::2], lexicon.MONTHS.split()[1::2]))
MEANS = [
    ("dem Zug", "train"),
    ("der Bahn", "train"),
    ("dem Bus", "bus"),
    ("dem Fahrrad", "bicycle"),
    ("dem Schiff", "ship"),
    ("dem Auto", "car"),
]
BE = ("sein", "I", "be")
ACTIVITIES = (
    "arbeiten",
    "singen",
    "kochen",
    "lernen",
    "schwimmen",
    "tanzen",
)  # done quickly, loudly, alone


def adjectives_for(noun):
    """The adjectives that make sense with a noun."""
    tags = set(" ".join(ADJECTIVE_CLASSES.get(tag, "") for tag in noun.tags).split()) or {
        "any",
        "thing",
    }
    return [adjective for adjective in ADJECTIVES if adjective["class"] in tags]


class Speaker:
    """Draws clauses and sentences from one stream of random numbers."""

    def __init__(self, seed):
        self.random = random.Random(
            seed
        ).random  # the one method whose stream is promised to stay the same

    def chance(self, probability):
        return self.random() < probability

    def pick(self, options):
        return options[int(self.random() * len(options))]

    def pick_skewed(self, options):
        """Early options more often, as words have it."""
        draw = self.random()
        return options[int(draw * draw * len(options))]

    def weighted(self, options):
        """One of (weight, option)."""
        draw = self.random() * sum(weight for weight, _ in options)
        for weight, option in options:
            draw -= weight
            if draw < 0:
                return option
        return options[-1][1]

    # noun phrases

    def noun(self, classes):
        tag = self.pick(classes)
        noun = self.pick_skewed(BY_CLASS[tag])
        wanted = [tag] + [t for t in noun.tags if t in ("dish", "juice")]
        if ("head" in noun.tags or "dish" in noun.tags or "juice" in noun.tags) and self.chance(
            0.45
        ):
            fitting = [
                m
                for m in MODIFIERS
                if any(t in m[2] for t in wanted)
                and not set(m[1].split()) & set(noun.english.split())
                and m[0].lower()[:4] != noun.singular.lower()[:4]
            ]
            if fitting:
                first = self.pick(fitting)
                return noun.with_first_part(first[0], first[1])
        return noun

    def determiner(self, noun, number, owner):
        if noun.mass:
            return self.weighted([(6, "none"), (3, "def"), (1, "this")])
        options = [(40, "def"), (28, "indef"), (6, "this"), (4, Name(*self.pick(NAMES)))]
        possessor = (
            self.again(owner) if owner else Pronoun(self.pick(["1s", "1p", "2s", "3m", "3f", "3p"]))
        )
        options.append((20 if "person" in noun.tags else 14, possessor))
        if number == "s":
            options.append((4, "every"))
        else:
            options += [(14, 2 + int(self.random() * 4)), (5, 6 + int(self.random() * 94))]
            options += [(4, kind) for kind in QUANTIFIERS]
        return self.weighted(options)

    def phrase(self, classes, owner=None, plain=False):
        """A noun phrase with a noun of these classes; `owner` may be its possessor; plain: no
        genitive after it."""
        noun = self.noun(classes)
        number = "p" if noun.plural != "-" and not noun.mass and self.chance(0.24) else "s"
        determiner = self.determiner(noun, number, owner)
        adjectives = []
        fitting = adjectives_for(noun)
        while fitting and len(adjectives) < 2 and self.chance(0.3 if not adjectives else 0.12):
            adjective = self.pick(fitting)
            adjectives.append((adjective["stem"], adjective["english"]))
            fitting = [a for a in fitting if a["class"] != adjective["class"]]
        genitive = None
        if determiner == "def" and not plain and self.chance(0.1) and "mass" not in noun.tags:
            possessor = ["building"] if "openable" in noun.tags else ["person"]
            other = self.noun(possessor)
            genitive = NounPhrase(
                other, "p" if self.chance(0.2) else "s", self.pick(["def", "def", "this"])
            )
        return NounPhrase(noun, number, determiner, adjectives, genitive)

    def someone(self, owner=None, plain=False):
        """A person: pronoun, name, noun phrase or a pair."""
        kind = self.weighted(
            [(30, "pronoun"), (22, "name"), (44, "noun"), (0 if plain else 6, "pair")]
        )
        if kind == "pronoun":
            return Pronoun(self.pick(["1s", "1s", "3m", "3f", "1p", "3p", "2s", "2p", "F"]))
        if kind == "name":
            return Name(*self.pick(NAMES))
        if kind == "pair":
            first = Name(*self.pick(NAMES))
            second = self.phrase(["person"], owner=first, plain=True)
            if second.determiner in ("indef", "every"):
                second.determiner = self.again(first)
            return Pair(first, second)
        return self.phrase(["person"], owner, plain)

    def object(self, classes, subject):
        """An object: sometimes a pronoun or a name, never the subject's own person."""
        tag = self.pick(classes)
        if tag == "person" and self.chance(0.5):
            if self.chance(0.5):
                keys = [
                    key
                    for key in ("1s", "2s", "3m", "3f", "1p", "3p", "F")
                    if key[0] != subject.key()[0]
                ]
                return Pronoun(self.pick(keys))
            return Name(*self.pick(NAMES))
        if tag != "person" and tag not in ("drink", "abstract") and self.chance(0.1):
            key = self.pick(["3m", "3f", "3n", "3p"])
            return Pronoun(key, "3p" if key == "3p" else "3n")
        return self.phrase([tag], owner=subject)

    # circumstances

    def time(self, when):
        if when == "since":
            words = number_words(2 + int(self.random() * 9))
            german, english = self.pick(
                [("Jahren", "years"), ("Monaten", "months"), ("Wochen", "weeks")]
            )
            return ["seit", words[0], german], ["for", words[1], english]
        kind = self.random()
        if when in ("past", "future"):
            if kind < 0.12:
                words = number_words(2 + int(self.random() * 11))
                german, english = self.pick(
                    [
                        ("Jahren", "years"),
                        ("Tagen", "days"),
                        ("Stunden", "hours"),
                        ("Wochen", "weeks"),
                    ]
                )
                if when == "past":
                    return ["vor", words[0], german], [words[1], english, "ago"]
                return ["in", words[0], german], ["in", words[1], english]
            if kind < 0.2:
                german, english = self.pick(MONTHS)
                return ["im", german], ["in", english]
            if kind < 0.26:
                year = str((1970 if when == "past" else 2030) + int(self.random() * 30))
                return ["im", "Jahr", year], ["in", year]
        if when in ("past", "future", "now"):
            if 0.3 < kind < 0.45:
                german, english = self.pick(WEEKDAYS)
                return ["am", german], ["on", english + ("s" if when == "now" else "")]
            if 0.45 < kind < 0.53:
                german, english = number_words(2 + int(self.random() * 10))
                return ["um", german, "Uhr"], ["at", english, "o'clock"]
        options = [time for time in TIMES if when in time[2]]
        german, english, _ = self.pick(options)
        return list(german), list(english)

    def place(self, going):
        """Where somebody is or goes: German and English words."""
        kind = self.random()
        if kind < 0.25:
            german, english = self.pick(CITIES)
            return (
                (["nach", german], ["to", english]) if going else (["in", german], ["in", english])
            )
        if kind < 0.31:
            gender, german, english = self.pick(COUNTRIES)
            article = definite("acc" if going else "dat", gender)
            words = (
                [CONTRACTIONS[("in", article)]]
                if ("in", article) in CONTRACTIONS
                else ["in", article]
            )
            return words + [german], ["to" if going else "in", english]
        if kind < 0.37:
            return (["nach", "Hause"], ["home"]) if going else (["zu", "Hause"], ["at", "home"])
        if kind < 0.45 and going:
            person = self.phrase(["person"], plain=True)
            return with_preposition("zu", person, "dat"), ["to"] + person.english("object")
        noun = self.noun(["place"])
        adjectives = [
            (a["stem"], a["english"])
            for a in [self.pick(adjectives_for(noun))]
            if self.chance(0.25)
        ]
        phrase = NounPhrase(
            noun, "s", self.pick(["def", "def", "def", "indef", "this"]), adjectives
        )
        there, thither, english_there, english_thither = PLACES[noun.base]
        preposition = thither if going else there
        case = "acc" if going and preposition != "zu" else "dat"
        english = english_thither if going else english_there
        return with_preposition(preposition, phrase, case), [english] + phrase.english("object")

    def position(self, going):
        german, english = self.pick(POSITIONS)
        if going and german == "vor":
            german, english = POSITIONS[0]
        furniture = self.phrase(["furniture"], plain=True)
        return with_preposition(german, furniture, "acc" if going else "dat"), [
            english
        ] + furniture.english("object")

    # clauses

    def when(self):
        return self.weighted(
            [(30, "now"), (11, "going"), (34, "past"), (17, "future"), (8, "perfect")]
        )

    def clause(self, subject=None, use=None, when=None, bare=False):
        """A finite clause. bare: neither time, negation, modal nor other extras (for
        infinitives)."""
        given = use is not None
        if use is None:
            if subject is None and self.chance(0.06):
                subject = self.phrase(["animal"])
            animal = isinstance(subject, NounPhrase) and "animal" in subject.noun.tags
            use = self.pick(ANIMAL_USES) if animal else self.pick(PLAIN_USES)
        if subject is None:
            subject = self.someone()
        when = when or self.when()
        if when == "going" and (use[2] in lexicon.STATIVE or use[2].startswith("be ")):
            when = "now"
        clause = Clause(subject, use, when)
        self.fill(clause, use[1].lstrip("r"))
        if use[0] == "fahren" and use[2] == "go" and self.chance(0.5):
            german, english = self.pick(MEANS)
            clause.means = ["mit"] + german.split(), ["by", english]
        elif use[1] in ("I", "G", "L") and not given and self.chance(0.12):
            person = self.phrase(["person"], owner=subject, plain=True)
            clause.means = (
                with_preposition("mit", person, "dat"),
                ["with"] + person.english("object"),
            )
        if not bare:
            self.extras(clause)
        return clause

    def fill(self, clause, frame):
        kind, _, classes = frame.partition(":")
        if kind in ("A", "DA") and classes:
            clause.accusative = self.object(classes.split(","), clause.subject)
            if kind == "DA":
                clause.dative = self.object(["person"], clause.subject)
                clause.to_form = self.chance(0.3)
                if isinstance(clause.accusative, Pronoun) and clause.dative.pronoun:
                    clause.dative = self.phrase(["person"], owner=clause.subject)
        elif kind == "D":
            clause.dative = self.object(classes.split(","), clause.subject)
        elif kind == "P":
            preposition, case, english, classes = classes.split(":")
            phrase = self.object(classes.split(","), clause.subject)
            if phrase.pronoun and not phrase.animate:
                phrase = self.phrase(classes.split(","), owner=clause.subject)  # no darauf, daran
            clause.prepositional = preposition, case, english, phrase
        elif kind in ("G", "L"):
            clause.place = self.place(kind == "G")

    def extras(self, clause):
        """Time, frequency, manner, modal, negation: what fits together."""
        when, frame = clause.when, clause.use[1]
        stative = clause.use[2] in lexicon.STATIVE or clause.use[2].startswith("be ")
        third = clause.subject.person != 2 and clause.subject.key() not in ("F", "2p")
        clause.spoken = not third or self.chance(0.68)
        if clause.use[0] in ("haben", "sein", "wissen", "mögen"):
            clause.spoken = False
        if when in ("now", "past", "future") and self.chance(0.16):
            clause.modal = self.weighted(
                [(10, "können"), (10, "müssen"), (7, "wollen"), (5, "dürfen")]
                + ([(4, "sollen"), (5, "möchten")] if when != "past" else [])
            )
            clause.when = when = "now" if when == "future" else when
        if when == "since" or when == "going" and self.chance(0.85):
            clause.time = self.time(when)
        elif when in ("past", "future", "now") and self.chance(
            {"past": 0.6, "future": 0.65, "now": 0.25}[when]
        ):
            clause.time = self.time("future" if clause.modal and when == "now" else when)
            clause.plain_future = when == "future" and self.chance(0.5)
        elif when in ("now", "past") and not stative and self.chance(0.28):
            clause.frequency = self.pick(FREQUENCIES)
        if frame == "I" and not clause.means and clause.use[0] in ACTIVITIES and self.chance(0.25):
            clause.manner = self.pick(MANNERS)
        if (
            not clause.frequency
            and not clause.manner
            and when not in ("since",)
            and self.chance(0.17)
        ):
            self.negate(clause)
        if (
            when == "now"
            and not clause.modal
            and not clause.frequency
            and not clause.negated
            and clause.subject.animate
        ):
            clause.likes = not stative and self.chance(0.12) and frame[0] in "IALG"

    def negate(self, clause):
        """Negate a clause, unless it counts something: "not all the books" has more than one
        reading."""
        phrases = [clause.accusative, clause.dative, clause.subject]
        phrases += [clause.prepositional[3]] if clause.prepositional else []
        for phrase in phrases:
            counted = phrase.determiner if isinstance(phrase, NounPhrase) else None
            if counted in QUANTIFIERS or counted == "every" or isinstance(counted, int):
                return
        accusative = clause.accusative
        if isinstance(accusative, NounPhrase) and accusative.determiner in ("indef", "none"):
            accusative.determiner = "kein"
        clause.negated = True

    def relative(self, phrase, when):
        """Attach a relative clause to a phrase."""
        pronoun = relative_pronoun(phrase)
        if phrase.animate or "animal" in phrase.noun.tags:
            if self.chance(0.65):
                uses = ANIMAL_USES if "animal" in phrase.noun.tags else PLAIN_USES
                clause = self.clause(pronoun, self.pick(uses), when)
                phrase.relative = clause, "subject"
                return
        use = self.pick(
            [
                use
                for use in PLAIN_USES
                if use[1].startswith(("A:", "D:"))
                and set(use[1][2:].split(",")) & set(phrase.noun.tags)
            ]
        )
        clause = Clause(self.someone(plain=True), use, when)
        slot = "accusative" if use[1].startswith("A:") else "dative"
        setattr(clause, slot, pronoun)
        self.extras(clause)
        phrase.relative = clause, slot

    def state(self, subject=None, when=None):
        """A clause with sein: an adjective or a comparison."""
        if subject is None:
            classes = [
                "person",
                "thing",
                "building",
                "vehicle",
                "document",
                "food",
                "place",
                "animal",
                "clothes",
                "abstract",
            ]
            subject = self.someone() if self.chance(0.35) else self.phrase([self.pick(classes)])
        when = when or self.weighted([(6, "now"), (3, "past")])
        if isinstance(subject, NounPhrase):
            options = adjectives_for(subject.noun)
            subject.adjectives = []
        else:
            kind = "living" if subject.animate else "any"
            options = [
                a
                for a in ADJECTIVES
                if a["class"] in (kind, "person" if subject.animate else "any")
            ]
        adjective = self.pick(options)
        clause = Clause(subject, BE, "past" if when == "past" else "now")
        if isinstance(subject, NounPhrase) and self.chance(0.25):
            other = NounPhrase(
                self.noun(subject.noun.tags[:1]), "s", self.pick(["def", "this", "indef"])
            )
            clause.predicate = (
                [adjective["more"], "als"] + other.german("nom"),
                adjective["english_more"].split() + ["than"] + other.english("object"),
            )
        else:
            degree = self.weighted(
                [(5, None), (3, ("sehr", "very")), (2, ("zu", "too")), (1, ("ganz", "quite"))]
            )
            words = [adjective["word"]], adjective["english"].split()
            clause.predicate = ([degree[0]] + words[0], [degree[1]] + words[1]) if degree else words
        if self.chance(0.2):
            self.negate(clause)
        elif self.chance(0.2):
            clause.frequency = self.pick(FREQUENCIES)
        return clause

    def passive(self):
        use = self.pick(PASSIVE_USES)
        classes = [t for t in use[1].partition(":")[2].split(",") if t != "person"] or ["person"]
        subject = self.phrase(classes)
        when = self.weighted([(3, "now"), (2, "going"), (4, "past"), (2, "future"), (1, "perfect")])
        clause = Clause(subject, use, when, passive=True)
        if clause.use[2] in lexicon.STATIVE and clause.when == "going":
            clause.when = "now"
        clause.spoken = self.chance(0.3)
        if self.chance(0.45):
            clause.agent = self.phrase(["person"], plain=True)
        if clause.when in ("past", "future", "going") and self.chance(0.5):
            clause.time = self.time(clause.when)
        if self.chance(0.12):
            self.negate(clause)
        if self.chance(0.15) and clause.when in ("now", "past"):
            clause.modal = self.pick(
                ["müssen", "können"] if clause.when == "past" else ["müssen", "können", "sollen"]
            )
        return clause

    def placed(self):
        """Something lies, stands or hangs somewhere, or somebody puts it there."""
        if self.chance(0.5):
            german, english = self.pick(
                [
                    ("liegen", "lie"),
                    ("stehen", "stand"),
                    ("sein", "be"),
                    ("liegen", "be"),
                    ("stehen", "be"),
                ]
            )
            subject = self.phrase([self.pick(["thing", "document", "gift"])])
            clause = Clause(
                subject,
                (german, "L", english),
                self.pick(["now", "now", "past"]),
                place=self.position(False),
            )
        else:
            german = self.pick(["legen", "stellen"])
            when = self.pick(["now", "past", "past", "future"])
            clause = Clause(self.someone(), (german, "A:", "put"), when, place=self.position(True))
            clause.accusative = self.phrase(
                ["thing"] if german == "stellen" else ["document", "clothes"], owner=clause.subject
            )
            clause.spoken = self.chance(0.75)
        if clause.when != "now" and self.chance(0.4):
            clause.time = self.time(clause.when)
        if self.chance(0.1):
            self.negate(clause)
        return clause

    # sentences: (German words, English words)

    def main(self, clause, front=0.35):
        """A main clause, its subject with a relative clause if it has one, perhaps with another
        slot in front."""
        leads = []
        if clause.time and clause.time[0] != ["gerade"]:
            leads += ["time"] * 3
        for slot in ("accusative", "dative"):
            phrase = getattr(clause, slot)
            full = isinstance(phrase, (NounPhrase, Name)) and phrase.definite
            if full and phrase.relative is None and clause.subject.relative is None:
                leads.append(slot)
        if clause.place and not clause.place[0][0].startswith(("nach", "zu", "ins", "ans")):
            leads += ["place"] if clause.use[1] == "L" else []
        lead = self.pick(leads) if leads and self.chance(front) else "subject"
        if lead == "time":
            german, time = clause.german(lead="time"), clause.time
            clause.time = None
            english = time[1] + self._english_with_relative(clause)
            clause.time = time
        else:
            german, english = clause.german(lead=lead), self._english_with_relative(clause)
        if clause.subject.relative is not None:
            german = self._insert_relative(clause, german)
        return german, english

    def _insert_relative(self, clause, german):
        subject = clause.subject.german("nom")
        for start in range(len(german)):
            if german[start : start + len(subject)] == subject:
                end = start + len(subject)
                return german[:end] + german_relative(clause.subject) + german[end:]
        raise AssertionError("the subject is part of its own clause")

    def _english_with_relative(self, clause):
        words = clause.english()
        if clause.subject.relative is None:
            return words
        count = len(clause.subject.english("subject"))
        return words[:count] + english_relative(clause.subject) + words[count:]

    def again(self, subject):
        """The pronoun for a subject already named."""
        return Pronoun(subject.key(), subject.english_key())

    def simple(self):
        german, english = self.main(self.clause())
        return german + ["."], english + ["."]

    def copular(self):
        german, english = self.main(self.state(), front=0)
        return german + ["."], english + ["."]

    def since(self):
        german, english = self.main(self.clause(use=self.pick(SINCE_USES), when="since"), front=0.4)
        return german + ["."], english + ["."]

    def passive_sentence(self):
        german, english = self.main(self.passive())
        return german + ["."], english + ["."]

    def placed_sentence(self):
        german, english = self.main(self.placed())
        return german + ["."], english + ["."]

    def yes_no(self):
        clause = self.weighted([(6, self.clause), (2, self.state), (1, self.passive)])()
        return clause.german("first") + ["?"], clause.english("question") + ["?"]

    def question(self):
        kind = self.pick(["who", "whom", "what", "where", "adverb", "adverb", "which"])
        if kind == "who":
            clause = self.clause(
                WHO, self.pick([use for use in PLAIN_USES if not use[1].startswith("r")])
            )
            clause.negated = False
            return clause.german(lead="subject") + ["?"], clause.english("gap", lead=["who"]) + [
                "?"
            ]
        if kind in ("whom", "what", "which"):
            tag = (
                "person" if kind == "whom" else self.pick(["thing", "document", "food", "clothes"])
            )
            uses = [
                use
                for use in PLAIN_USES
                if use[1].startswith("A:") and tag in use[1][2:].split(",")
            ]
            clause = Clause(
                self.someone(plain=True), self.pick(uses), self.pick(["now", "past", "future"])
            )
            clause.accusative = {"whom": WHO, "what": WHAT}.get(kind) or NounPhrase(
                self.noun([tag]), "s", "which"
            )
            if kind == "which" and clause.accusative.noun.mass:
                clause.accusative = WHAT
            self.extras(clause)
            clause.negated = clause.likes = False
            german = clause.german(lead="accusative")
            english = clause.english(
                "question", gap="accusative", lead=clause.accusative.english("object")
            )
            return german + ["?"], english + ["?"]
        clause = self.clause(subject=self.someone(plain=True))
        if kind == "where":
            uses = [use for use in PLAIN_USES if use[1] in ("L", "G")]
            clause = self.clause(subject=clause.subject, use=self.pick(uses))
            clause.place = None
            word = ("wo", "where") if clause.use[1] == "L" else ("wohin", "where")
        else:
            word = self.pick(
                [
                    ("wann", "when"),
                    ("warum", "why"),
                    ("wie oft", "how often"),
                    ("mit wem", "with whom"),
                ]
            )
            if word[0] == "wann":
                clause.time = clause.frequency = None
            if word[0] == "wie oft":
                clause.frequency, clause.time = None, None
                clause.when = "now" if clause.when not in ("now", "past") else clause.when
                clause.likes = False
            if word[0] == "mit wem":
                clause.means = None
        if word[0] != "warum":
            clause.negated = False
            if isinstance(clause.accusative, NounPhrase) and clause.accusative.determiner == "kein":
                clause.accusative.determiner = "def"
        return (
            clause.german("second", field=word[0].split()) + ["?"],
            clause.english("question", lead=word[1].split()) + ["?"],
        )

    def subordinate(self):
        """A main clause with weil, wenn, obwohl, als, bevor, nachdem..., before or after it."""
        conjunction = self.pick(
            [
                ("weil", "because"),
                ("weil", "because"),
                ("obwohl", "although"),
                ("wenn", "if"),
                ("wenn", "when"),
                ("als", "when"),
                ("während", "while"),
                ("bevor", "before"),
                ("da", "since"),
            ]
        )
        when = {
            "if": "future",
            "when": "past" if conjunction[0] == "als" else "now",
            "before": "past",
        }.get(conjunction[1])
        when = when or self.pick(
            ["past", "past", "now"] + ["future"] * (conjunction[0] in ("weil", "da", "obwohl"))
        )
        main = self.clause(when=when)
        subject = self.again(main.subject) if self.chance(0.55) else None
        if conjunction[0] in ("weil", "obwohl", "da") and self.chance(0.35):
            side = self.state(subject=subject, when="past" if when == "past" else "now")
        else:
            side = self.clause(subject=subject, when="now" if when == "future" else when)
        if conjunction[0] in ("wenn", "als", "während", "bevor"):
            side.frequency = None
            if conjunction[0] != "wenn":
                side.time = None
        if conjunction[1] == "when":
            self._affirm(main)
        german_side = [conjunction[0]] + side.german("final")
        english_side = [conjunction[1]] + side.english()
        if conjunction[0] != "da" and self.chance(0.6):
            german, english = self.main(main, front=0.2)
            return german + [","] + german_side + ["."], english + english_side + ["."]
        if main.subject.pronoun or not (
            side.subject.pronoun and side.subject.key() == main.subject.key()
        ):
            return (
                german_side + [","] + main.german(field=[]) + ["."],
                english_side + [","] + main.english() + ["."],
            )
        main.subject, named = side.subject, main.subject  # the name comes first, the pronoun second
        side.subject = named
        return (
            [conjunction[0]] + side.german("final") + [","] + main.german(field=[]) + ["."],
            [conjunction[1]] + side.english() + [","] + main.english() + ["."],
        )

    def _affirm(self, clause):
        clause.negated = False
        if isinstance(clause.accusative, NounPhrase) and clause.accusative.determiner == "kein":
            clause.accusative.determiner = "indef" if not clause.accusative.noun.mass else "none"

    def complement(self):
        """A dass-clause or an indirect question."""
        use = self.pick(CLAUSE_USES)
        outer = Clause(self.someone(), use, self.pick(["now", "now", "past"]))
        outer.spoken = use[0] != "wissen" and self.chance(0.7)
        inner = self.clause(
            subject=self.again(outer.subject) if self.chance(0.3) else None,
            when="past" if outer.when == "past" else self.when(),
        )
        if use[0] == "wissen" and self.chance(0.6):
            outer.negated = True
            word = self.pick([("ob", "whether"), ("warum", "why"), ("wann", "when"), ("ob", "if")])
            if word[0] == "wann":
                inner.time = inner.frequency = None
            self._affirm(inner)
        else:
            word = ("dass", "that")
            if self.chance(0.2) and use[0] != "vergessen":
                outer.negated = True
        german = outer.german() + [",", word[0]] + inner.german("final") + ["."]
        return german, outer.english() + [word[1]] + inner.english() + ["."]

    def infinitive(self):
        """Purpose (um ... zu) or a verb with an infinitive."""
        subject = self.someone()
        inner = self.clause(subject=subject, when="now", bare=True)
        if self.chance(0.5):
            use = self.pick([use for use in PLAIN_USES if use[1] == "G"])
            outer, um = (
                self.clause(subject=subject, use=use, when=self.pick(["now", "past", "future"])),
                ["um"],
            )
            outer.negated = False
        else:
            outer, um = Clause(subject, self.pick(ZU_USES), self.pick(["now", "past", "past"])), []
            outer.spoken = self.chance(0.7)
            if outer.when == "past" and self.chance(0.4):
                outer.time = self.time("past")
        german, english = self.main(outer)
        order = "ing" if outer.use[2] == "stop" else "to"
        return german + [","] + um + inner.german("zu") + ["."], english + inner.english(order) + [
            "."
        ]

    def with_relative(self):
        if self.chance(0.55):
            subject = self.phrase(["person", "person", "animal"], plain=True)
            if subject.determiner == "every":
                subject.determiner = "def"
            self.relative(subject, self.pick(["now", "past", "past"]))
            clause = (
                self.clause(subject=subject) if self.chance(0.75) else self.state(subject=subject)
            )
            german, english = self.main(clause, front=0.25)
            return german + ["."], english + ["."]
        uses = [use for use in PLAIN_USES if use[1].startswith("A:") and use[0] not in ("haben",)]
        clause = self.clause(use=self.pick(uses))
        head = clause.accusative
        if (
            not isinstance(head, NounPhrase)
            or head.determiner in ("kein", "every")
            or head.noun.mass
        ):
            clause.accusative = self.phrase([t for t in clause.use[1][2:].split(",")], plain=True)
            self._affirm(clause)
            if clause.accusative.determiner == "every":
                clause.accusative.determiner = "def"
        clause.accusative.owner, clause.time, clause.plain_future = None, None, False
        self.relative(clause.accusative, self.pick(["now", "past", "past"]))
        german, english = self.main(clause, front=0)
        return german + ["."], english + ["."]

    def coordinated(self):
        conjunction = self.pick(
            [("und", "and"), ("und", "and"), ("aber", "but"), ("denn", "because"), ("oder", "or")]
        )
        when = self.pick(["now", "past", "past", "future"])
        first = (
            self.clause(when=when)
            if self.chance(0.75)
            else self.state(when="past" if when == "past" else "now")
        )
        subject = self.again(first.subject) if self.chance(0.5) else None
        thing = subject is not None and subject.english_key() == "3n"  # things are, but do not act
        if thing or (conjunction[0] in ("aber", "denn") and self.chance(0.4)):
            second = self.state(subject=subject, when="past" if when == "past" else "now")
        else:
            second = self.clause(subject=subject, when=when)
        german, english = self.main(first, front=0.2)
        german_second, english_second = self.main(second, front=0.15)
        comma = [] if conjunction[0] in ("und", "oder") else [","]
        english_comma = [","] if conjunction[0] in ("aber",) else []
        return (
            german + comma + [conjunction[0]] + german_second + ["."],
            english + english_comma + [conjunction[1]] + english_second + ["."],
        )

    def unreal(self):
        """Wenn ich Zeit hätte, würde ich ..."""
        subject = self.someone()
        german, english = self.pick(
            [
                ("mehr Zeit", "more time"),
                ("viel Geld", "a lot of money"),
                ("Zeit", "time"),
                ("genug Geld", "enough money"),
                ("Glück", "luck"),
            ]
        )
        side = (
            ["wenn"]
            + subject.german("nom")
            + german.split()
            + [HABEN.unreal(subject.person, subject.number)]
        )
        english_side = ["if"] + subject.english("subject") + ["had"] + english.split()
        main = self.clause(subject=self.again(subject), when="now", bare=True)
        main.when = "unreal"
        return side + [","] + main.german(field=[]) + ["."], english_side + [
            ","
        ] + main.english() + ["."]

    def sentence(self):
        """One pair of sentences."""
        kind = self.weighted(
            [
                (24, self.simple),
                (8, self.copular),
                (2, self.since),
                (7, self.passive_sentence),
                (6, self.placed_sentence),
                (6, self.yes_no),
                (8, self.question),
                (14, self.subordinate),
                (8, self.complement),
                (6, self.infinitive),
                (9, self.with_relative),
                (9, self.coordinated),
                (2, self.unreal),
            ]
        )
        german, english = kind()
        return spell(german), spell(articles(english))


def articles(words):
    """a or an, by the sound that follows."""
    result = list(words)
    for i, word in enumerate(words[:-1]):
        if word == "a":
            following = words[i + 1].lower()
            vowel = following[0] in VOWELS and not following.startswith(SOUNDS_CONSONANT)
            if vowel or following.startswith(SOUNDS_VOWEL):
                result[i] = "an"
    return result


def spell(words):
    """A sentence from its words: commas and end marks attached, doubled commas dropped, first
    letter in upper case."""
    text = ""
    for word in words:
        if word in (",", ".", "?"):
            text = text.rstrip(",") + word
        else:
            text += " " + word
    text = text.strip()
    return text[0].upper() + text[1:]


# -- the corpus ------------------------------------------------------------------------------------


def corpus(seed, sizes):
    """Lists of (German, English) pairs, one list for each size; no German and no English sentence
    occurs twice.

    Raises ValueError when the grammar keeps repeating itself, that is when far too many sentences
    are asked for.
    """
    speaker, seen_german, seen_english = Speaker(seed), set(), set()
    splits = []
    for size in sizes:
        pairs, failures = [], 0
        while len(pairs) < size:
            german, english = speaker.sentence()
            if german in seen_german or english in seen_english:
                failures += 1
                if failures > 1000 + 20 * size:
                    raise ValueError(
                        f"the grammar has too few different sentences for {sum(sizes)}; ask for "
                        "fewer"
                    )
                continue
            seen_german.add(german)
            seen_english.add(english)
            pairs.append((german, english))
        splits.append(pairs)
    return splits


def write(path, lines):
    """Write lines so that the file is there completely or not at all."""
    with open(path + ".tmp", "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(line + "\n" for line in lines)
    os.replace(path + ".tmp", path)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, help="folder for {train,valid,test}.{de,en}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=12000, help="pairs (default %(default)s)")
    parser.add_argument("--valid", type=int, default=507, help="pairs (default %(default)s)")
    parser.add_argument("--test", type=int, default=503, help="pairs (default %(default)s)")
    options = parser.parse_args(arguments)
    sizes = {"train": options.train, "valid": options.valid, "test": options.test}
    for name, size in sizes.items():
        if size < 1:
            parser.error(f"--{name} is {size}; it must be at least 1")
    try:
        os.makedirs(options.out, exist_ok=True)
        for name, pairs in zip(sizes, corpus(options.seed, list(sizes.values()))):
            for side, language in enumerate(("de", "en")):
                write(
                    os.path.join(options.out, f"{name}.{language}"), (pair[side] for pair in pairs)
                )
    except (OSError, ValueError) as error:
        parser.exit(2, f"grammar.py: error: {error}\n")
    print(
        f"wrote {', '.join(f'{size} {name}' for name, size in sizes.items())} pairs to "
        f"{options.out}"
    )


if __name__ == "__main__":
    sys.exit(main())
