"""alpha*: bounds where gains and losses are sure, and none where they are not."""

import math

import numpy as np
import pytest

from fairseq_klang.analysis.ratio import alpha_star
from fairseq_klang.experiments.significance_check import mean

RATIOS = [1, 3, math.inf]


def simulated(gains, seeds=3, noise=0.1, random=0):
    """Statistics under the mean: learning [A, R, N, 2] whose sentences gain so much on the frozen
    model [N, 2], with noise of each seed's own."""
    generator = np.random.default_rng(random)
    frozen = generator.normal(size=200)
    own = generator.normal(size=(len(gains), seeds, 200)) * noise
    learning = frozen + np.array(gains)[:, None, None] + own
    return np.stack([learning, np.ones_like(learning)], -1), np.stack([frozen, frozen * 0 + 1], -1)


def star(gains, **options):
    learning, frozen = simulated(gains, **options)
    return alpha_star(RATIOS, learning, frozen, mean, samples=200)


@pytest.mark.parametrize(
    "gains, low, high, words",
    [
        ([1, 1, 1], math.inf, None, "above inf, the largest ratio tried"),
        ([1, 1, 0], 3, None, "above 3"),
        ([1, 0, -1], 1, math.inf, "between 1 and inf"),
        ([1, -1, -1], 1, 3, "between 1 and 3"),
        ([0, -1, -1], None, 3, "below 3"),
        ([-1, -1, -1], None, 1, "below 1, the smallest ratio tried"),
        ([0, 0, 0], None, None, "undecided"),
        # a loss below a gain bounds nothing: neither row begins
        ([-1, 1, 1], None, None, "undecided"),
        ([1, -1, 1], 1, None, "above 1"),
    ],
)
def test_bounds(gains, low, high, words):
    found = star(gains)
    assert (found.low, found.high) == (low, high) and found.verdict(RATIOS).startswith(words)
    assert [gain.delta for gain in found.gains] == pytest.approx(gains, abs=0.05)
    assert {gain.over for gain in found.gains} == {"seeds and sentences"}


def test_losses_of_the_size_of_rounding_say_nothing():
    """Scores that differ by 1e-6 either way; once alpha* was 0 here, or divided by zero."""
    for random in range(20):
        tiny = np.random.default_rng(random).normal(size=3) * 1e-6
        assert star(list(tiny), noise=0.01, random=random)[:2] == (None, None)
    equal = star([0, 0, 0], noise=0)
    assert equal[:2] == (None, None) and equal.gains[0].p_value == 1


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_bound_is_wrong_in_5_percent_of_all_cases_at_most(seeds):
    """Where no ratio gains or loses, any bound is wrong; 400 draws, so 5 % +- 1.1."""
    bounds = [star([0, 0, 0], seeds=seeds, random=random)[:2] for random in range(400)]
    assert sum(bound != (None, None) for bound in bounds) / 400 < 0.075


def test_ratios_must_ascend():
    learning, frozen = simulated([1, 1, 1])
    for ratios in ([3, 1, 2], [0, 1, 2], [1, 1, 2], []):
        with pytest.raises(ValueError, match="must be above 0 and ascend"):
            alpha_star(ratios, learning, frozen, mean)
