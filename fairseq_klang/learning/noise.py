"""Input noise for autoencoding: what is done to a sentence depends on its seed alone, not on the
batch it is in."""

from typing import Sequence

import numpy as np

NOISES = ("none", "mask", "drop", "swap")


def draw_mask(
    count: int, rate: float, seed: Sequence[int], at_least_one: bool = False
) -> np.ndarray:
    """[count] bool: each position True with probability `rate`; with `at_least_one`, one is chosen
    where none was.

    seed: a sequence of whole numbers of 0 or more, such as (run, epoch, sentence).
    """
    generator = np.random.default_rng(list(seed))
    chosen = generator.random(count) < rate
    if at_least_one and count and not chosen.any():
        chosen[generator.integers(count)] = True
    return chosen


def add_noise(
    words: Sequence[int], kind: str, rate: float, seed: Sequence[int], mask_symbol: int
) -> np.ndarray:
    """A noisy copy of one sentence.

    Args:
        words: [n] token ids, without </s>.
        kind: `none`; `mask` replaces a word by `mask_symbol`; `drop` removes it (one word always
            stays); `swap` exchanges it with the next one. Each with probability `rate` a word.
        seed: as in :func:`draw_mask`.
    Returns:
        [m] token ids, m <= n.
    Raises:
        ValueError: another kind.
    """
    if kind not in NOISES:
        raise ValueError(f"noise is {kind!r}; legal values are {', '.join(NOISES)}")
    words = np.array(words)
    if kind == "none" or not len(words):
        return words
    if kind == "mask":
        return np.where(draw_mask(len(words), rate, seed), mask_symbol, words)
    if kind == "drop":
        # The word that stays where all would go is drawn too, so that it is not always the same
        # one.
        return words[draw_mask(len(words), 1 - rate, seed, at_least_one=True)]
    for place in np.flatnonzero(draw_mask(len(words) - 1, rate, seed)):
        words[[place, place + 1]] = words[[place + 1, place]]
    return words
