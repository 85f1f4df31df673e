"""Parallel text for trials."""

import random

NOUNS = {
    "Hund": "dog",
    "Baum": "tree",
    "Zug": "train",
    "Brief": "letter",
    "Garten": "garden",
    "Turm": "tower",
    "Fluss": "river",
}


VERBS = {"steht": "stands", "wartet": "waits", "schläft": "sleeps", "glänzt": "shines"}


def pairs(count, seed):
    """German and English sentences put together from two word lists."""
    rng = random.Random(seed)
    for number in range(count):
        (noun, thing), (verb, does) = (
            rng.choice(sorted(NOUNS.items())),
            rng.choice(sorted(VERBS.items())),
        )
        yield (
            f"Der {noun} Nr. {number} {verb}, oder nicht?",
            f"The {thing} no. {number} {does}, or doesn't it?",
        )


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()
