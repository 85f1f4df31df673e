"""alpha*: the ratio of autoencoding to translation steps above which translation decays
(docs/claims.md)."""

import itertools
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .significance import Difference, Score, paired_bootstrap


class AlphaStar(NamedTuple):
    """Bounds of alpha*, together 95 %, and the gains in BLEU that they rest on.

    `low` is the largest ratio such that it and every smaller one tried gain for sure, None where
    the smallest does not; `high` is the smallest ratio such that it and every larger one lose for
    sure, None where the largest does not.
    """

    low: Optional[float]
    high: Optional[float]
    gains: List[Difference]  # one for each ratio, over the frozen model

    def verdict(self, ratios: Sequence[float]) -> str:
        """The bounds in words; ratios: those tried."""
        if self.low is None and self.high is None:
            return "undecided: the smallest ratio does not gain for sure, nor does the largest lose"
        if self.high is None:
            largest = ", the largest ratio tried" if self.low == ratios[-1] else ""
            return f"above {self.low:g}{largest}"
        if self.low is None:
            smallest = ", the smallest ratio tried" if self.high == ratios[0] else ""
            return f"below {self.high:g}{smallest}"
        return f"between {self.low:g} and {self.high:g}"


def alpha_star(
    ratios: Sequence[float],
    learning: np.ndarray,
    frozen: np.ndarray,
    score: Score,
    samples: int = 1000,
    seed: int = 12345,
) -> AlphaStar:
    """Bounds of the ratio at which a gain over the frozen model turns into a loss.

    The ratios are tested in order, from the smallest upwards for a gain and from the largest
    downwards for a loss, and the first that shows none ends its row. So no correction for several
    tests is needed: a bound is wrong only where the first test that should fail does not.

    Args:
        ratios: [A] ascending, above 0; the last may be inf, no translation steps at all.
        learning: [A, R, N, C], the statistics of N sentences for R seeds of learning.
        frozen: [N, C], of the model before it learns, which has no seeds.
        score, samples, seed: as in paired_bootstrap.
    Raises:
        ValueError: ratios that do not ascend or are not above 0.
    """
    if any(b <= a for a, b in zip(ratios, ratios[1:])) or not ratios or ratios[0] <= 0:
        raise ValueError(f"ratios are {list(ratios)}; they must be above 0 and ascend")
    gains = [
        paired_bootstrap(
            np.broadcast_to(frozen, runs.shape), runs, score, samples=samples, seed=seed
        )
        for runs in learning
    ]
    measured = list(zip(ratios, gains))
    low = _last(itertools.takewhile(lambda pair: pair[1].interval[0] > 0, measured))
    high = _last(itertools.takewhile(lambda pair: pair[1].interval[1] < 0, reversed(measured)))
    return AlphaStar(low, high, gains)


def _last(pairs: Iterable[Tuple[float, Difference]]) -> Optional[float]:
    """The ratio of the last pair, or None."""
    return next((ratio for ratio, _ in reversed(list(pairs))), None)
