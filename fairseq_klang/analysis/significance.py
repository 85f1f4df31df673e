"""Whether two systems differ: one paired test over test sentences and, where there are several,
over seeds of training.

Systems enter as statistics of sentences: for each seed and sentence the counts that a metric sums
before it makes a score of them. docs/statistics.md tells the method, what it assumes, and how
often it is wrong on simulated systems.
"""

import dataclasses
import math
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import numpy as np
from scipy import special
from scipy.optimize import brentq

# From summed statistics [..., C] to scores [...].
Score = Callable[[np.ndarray], np.ndarray]

LEVEL = 0.05
FEWEST_SAMPLES = 40  # with fewer resamples no p-value can be below LEVEL
BLOCK = 500  # resamples in memory at a time

# Between the critical value of known variance and Student's, by the seeds' share of the variance
# to this power. Cochran and Cox (1950) take the share itself, which is too careful with two seeds
# (2.2 % of true nulls below 0.05 at worst); at 4/3 the size is 3.1 to 7.3 % whatever the share.
SHARE_POWER = 4 / 3


@dataclasses.dataclass
class Difference:
    """Second system minus first, in units of the score.

    `p_value` is below 0.05 exactly where `interval` leaves out 0.
    """

    delta: float
    interval: Tuple[float, float]  # 95 %
    p_value: float  # two-sided
    bounds: Tuple[float, float]  # one-sided, 95 % each: above the first, below the second
    over: str  # what it is uncertain over: "sentences" or "seeds and sentences"
    seeds: int
    sentences: int
    samples: int


# -- statistics of sentences -----------------------------------------------------------------------


def sentence_statistics(metric: Any, lines: Sequence[str], reference: Sequence[str]) -> np.ndarray:
    """What a sacrebleu metric counts in each of N lines, [N, C]; the corpus score is made of the
    sums."""
    return np.array(metric._extract_corpus_statistics(lines, [reference]), dtype=np.float64)


def score_of(metric: Any) -> Score:
    """The function from summed statistics [..., C] to a sacrebleu metric's scores [...]."""

    def score(sums: np.ndarray) -> np.ndarray:
        rows = sums.reshape(-1, sums.shape[-1]).astype(np.int64).tolist()
        scores = [metric._compute_score_from_stats(row).score for row in rows]
        return np.array(scores).reshape(sums.shape[:-1])

    return score


# -- the test --------------------------------------------------------------------------------------


def paired_bootstrap(
    first: np.ndarray,
    second: np.ndarray,
    score: Score,
    *,
    samples: int = 1000,
    seed: int = 12345,
) -> Difference:
    """Whether `second` differs from `first`, the seeds paired in their order.

    With one seed the interval holds the middle 95 % of resamples of the sentences (Koehn 2004), and
    says nothing of another training. With more, the mean difference over seeds has the variance of
    the seeds' differences, by Student's t, plus the covariance that the seeds share because they
    translate the same sentences, from the resamples (Obuchowski and Rockette 1995, who compare
    diagnoses by several readers of the same cases).

    Args:
        first, second: [R, N, C], the statistics of N sentences for each of R seeds.
        score: from summed statistics to the score.
        samples: resamples of the sentences; the same for all seeds.
        seed: of the resampling.
    Raises:
        ValueError: shapes that differ, or fewer than FEWEST_SAMPLES samples.
    """
    if first.ndim != 3 or first.shape != second.shape or not first.size:
        raise ValueError(f"shapes are {first.shape} and {second.shape}; both must be [R, N, C]")
    if samples < FEWEST_SAMPLES:
        raise ValueError(f"samples is {samples}; it must be {FEWEST_SAMPLES} or more")
    seeds, sentences, _ = first.shape
    deltas = score(second.sum(1)) - score(first.sum(1))  # [R]
    drawn = np.concatenate(
        [
            (score(counts @ second) - score(counts @ first)).T
            for counts in _resamples(sentences, samples, seed)
        ]
    )  # [samples, R]
    if seeds == 1:
        interval, bounds, p_value = _over_sentences(drawn[:, 0])
    else:
        interval, bounds, p_value = _over_both(deltas, drawn)
    return Difference(
        float(deltas.mean()),
        interval,
        p_value,
        bounds,
        "sentences" if seeds == 1 else "seeds and sentences",
        seeds,
        sentences,
        samples,
    )


def _resamples(sentences: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Blocks [at most BLOCK, N]: how often each sentence is in a resample."""
    generator = np.random.default_rng(seed)
    for start in range(0, samples, BLOCK):
        size = min(BLOCK, samples - start)
        drawn = generator.integers(sentences, size=(size, sentences))
        drawn += sentences * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * sentences)
        yield counts.reshape(size, sentences).astype(np.float64)


Found = Tuple[Tuple[float, float], Tuple[float, float], float]  # interval, bounds, p-value


def _over_sentences(drawn: np.ndarray) -> Found:
    """From resampled differences [samples]; the interval's ends are those resamples that decide
    whether p is below LEVEL."""
    ordered, samples = np.sort(drawn), len(drawn)

    def ends(part: int) -> Tuple[float, float]:
        # the most resamples on the wrong side of 0 with (count + 1) / (samples + 1) < 1 / part
        count = math.ceil((samples + 1) / part) - 2
        return float(ordered[count]), float(ordered[samples - 1 - count])

    below, above = int((drawn <= 0).sum()), int((drawn >= 0).sum())
    p_value = min(1.0, 2 * (min(below, above) + 1) / (samples + 1))
    return ends(40), ends(20), p_value


def _over_both(deltas: np.ndarray, drawn: np.ndarray) -> Found:
    """From the seeds' differences [R] and their resamples [samples, R]."""
    seeds, delta = len(deltas), float(deltas.mean())
    covariance = np.cov(drawn, rowvar=False)
    shared = max(0.0, (covariance.sum() - np.trace(covariance)) / (seeds * (seeds - 1)))
    own = float(deltas.var(ddof=1)) / seeds
    deviation = math.sqrt(own + shared)
    if deviation == 0:  # every seed and every resample says the same
        return (delta, delta), (delta, delta), float(delta == 0)
    share = own / (own + shared)

    def ends(level: float) -> Tuple[float, float]:
        half = critical_value(level, share, seeds) * deviation
        return delta - half, delta + half

    def excess(log_p: float) -> float:
        return critical_value(math.exp(log_p), share, seeds) - abs(delta) / deviation

    smallest = math.log(1e-15)  # no smaller p is told
    log_p = brentq(excess, smallest, 0, xtol=1e-12) if excess(smallest) > 0 else smallest
    p_value = math.exp(log_p)
    return ends(LEVEL), ends(2 * LEVEL), p_value


def critical_value(level: float, share: float, seeds: int) -> float:
    """How many standard deviations a difference is from 0 where its two-sided p is `level`.

    share: the part of the variance that is known from the seeds only. With none the value is the
    normal distribution's, with all of it Student's.
    """
    weight = share**SHARE_POWER
    student, normal = -special.stdtrit(seeds - 1, level / 2), -special.ndtri(level / 2)
    return float(weight * student + (1 - weight) * normal)


# -- several tests ---------------------------------------------------------------------------------


def holm(p_values: Sequence[float]) -> List[float]:
    """p-values adjusted for being several (Holm 1979), in the order given: with no true difference
    at all, one of them is below 0.05 in at most 5 % of tables."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = largest
    return adjusted
