"""Input noise: what each kind does, and that it depends on the seed alone."""

import numpy as np
import pytest

from fairseq_klang.learning.noise import NOISES, add_noise, draw_mask

WORDS = np.arange(100, 140)


@pytest.mark.parametrize("kind", NOISES)
def test_the_seed_decides_and_the_input_stays(kind):
    words = WORDS.copy()
    first, again, other = (
        add_noise(words, kind, 0.3, seed, 3).tolist() for seed in ((1, 2, 7), (1, 2, 7), (1, 3, 7))
    )
    assert first == again and (words == WORDS).all()
    assert (first == other) == (kind == "none")


def test_what_each_kind_does():
    many = range(200)
    masked = [add_noise(WORDS, "mask", 0.3, (1, i), 3) for i in many]
    assert all(((line == WORDS) | (line == 3)).all() for line in masked)
    assert np.mean([line == 3 for line in masked]) == pytest.approx(0.3, abs=0.02)
    dropped = [add_noise(WORDS, "drop", 0.3, (1, i), 3) for i in many]
    assert all((np.diff(line) > 0).all() for line in dropped)  # the rest in its order
    assert 1 - np.mean([len(line) for line in dropped]) / len(WORDS) == pytest.approx(0.3, abs=0.02)
    swapped = [add_noise(WORDS, "swap", 0.3, (1, i), 3) for i in many]
    assert all(sorted(line) == WORDS.tolist() for line in swapped)
    # A swap of neighbours displaces the next word by one place; it can go on only by swaps in a
    # row.
    assert all(
        np.flatnonzero(line == word)[0] >= place - 1
        for line in swapped
        for place, word in enumerate(WORDS)
    )


def test_short_sentences():
    for kind in NOISES:
        assert add_noise(np.array([], dtype=np.int64), kind, 0.9, (1,), 3).tolist() == []
    assert all(add_noise(np.array([7]), "drop", 0.99, (i,), 3).tolist() == [7] for i in range(20))
    assert all(len(add_noise(np.array([7, 8]), "drop", 0.99, (i,), 3)) >= 1 for i in range(20))
    assert all(add_noise(np.array([7]), "swap", 0.99, (i,), 3).tolist() == [7] for i in range(20))
    assert all(draw_mask(3, 0.01, (i,), at_least_one=True).any() for i in range(20))
    with pytest.raises(
        ValueError, match="noise is 'blur'; legal values are none, mask, drop, swap"
    ):
        add_noise(WORDS, "blur", 0.1, (1,), 3)
