"""alpha*: the ratio of autoencoding to translation steps above which translation decays (DESIGN
4)."""

import math
from typing import NamedTuple, Tuple

import numpy as np


class AlphaStar(NamedTuple):
    """`alpha`, its 95 % `interval`, and the `share` of resamples in which BLEU decays at some ratio
    tried (alpha* is inf where none does, and 0 where the smallest one does already)."""

    alpha: float
    interval: Tuple[float, float]
    share: float


def break_even(ratios, gains):
    """The ratio at which a gain in BLEU, by ratio, first turns into a loss.

    Straight lines between the ratios tried, on the axis alpha / (1 + alpha), the share of
    autoencoding in all steps, so that ratio inf (no translation steps at all) is a point like
    others.

    Args:
        ratios: [A] ascending, above 0, the last may be inf; gains: [A], BLEU minus that of the
            frozen model.
    Returns:
        alpha*; 0 where the first gain is a loss already, inf where none is.
    Raises:
        ValueError: ratios that do not ascend or are not above 0.
    """
    if any(b <= a for a, b in zip(ratios, ratios[1:])) or not ratios or ratios[0] <= 0:
        raise ValueError(f"ratios are {list(ratios)}; they must be above 0 and ascend")
    if gains[0] < 0:
        return 0.0
    shares = [1.0 if math.isinf(ratio) else ratio / (1 + ratio) for ratio in ratios]
    for place in range(1, len(gains)):
        if gains[place] < 0:
            before, after = gains[place - 1], gains[place]
            share = shares[place - 1] + (shares[place] - shares[place - 1]) * before / (
                before - after
            )
            return share / (1 - share)
    return math.inf


def bleu_statistics(hypotheses, reference):
    """[N, 10] of sacrebleu's counts for each sentence: system and reference length, matches of
    order 1-4, totals of order 1-4."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=True, effective_order=True)
    scores = [
        metric.sentence_score(hypothesis, [line]) for hypothesis, line in zip(hypotheses, reference)
    ]
    return np.array(
        [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores],
        dtype=np.int64,
    )


def bleu_of(statistics):
    """Corpus BLEU, lower-cased, from the summed statistics [10] of :func:`bleu_statistics`."""
    from sacrebleu.metrics import BLEU

    numbers = [int(value) for value in statistics]
    return BLEU.compute_bleu(
        numbers[2:6], numbers[6:], numbers[0], numbers[1], smooth_method="exp"
    ).score


def alpha_star(ratios, learning, frozen, samples=1000, seed=12345):
    """:class:`AlphaStar` with a bootstrap interval over test sentences and seeds of training.

    Args:
        ratios: [A] as in :func:`break_even`.
        learning: [A, R, N, 10], the statistics of N sentences for R seeds; frozen: [N, 10], of the
            model before.
    """
    learning, frozen = np.asarray(learning), np.asarray(frozen)
    seeds, sentences = learning.shape[1], learning.shape[2]

    def star(rows, runs):
        base = bleu_of(frozen[rows].sum(0))
        sums = learning[:, :, rows].sum(2)
        return break_even(
            ratios,
            [
                np.mean([bleu_of(sums[place, run]) for run in runs]) - base
                for place in range(len(ratios))
            ],
        )

    generator = np.random.default_rng(seed)
    drawn = [
        star(generator.integers(sentences, size=sentences), generator.integers(seeds, size=seeds))
        for _ in range(samples)
    ]
    # Percentiles without interpolation: between a number and inf there is nothing to interpolate.
    low, high = (sorted(drawn)[int(round(part * (samples - 1)))] for part in (0.025, 0.975))
    share = float(np.mean([math.isfinite(value) for value in drawn]))
    return AlphaStar(star(np.arange(sentences), np.arange(seeds)), (low, high), share)
