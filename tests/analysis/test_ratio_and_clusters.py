"""Clusters and alpha*: known answers, and the interval's behaviour."""

import math

import numpy as np
import pytest
import sacrebleu

from fairseq_klang.analysis.clusters import ClusterError, cluster
from fairseq_klang.analysis.ratio import alpha_star, bleu_of, bleu_statistics, break_even


def test_tight_groups_are_found():
    centres = np.array([[0, 0], [10, 0], [0, 10]])
    points = np.concatenate(
        [centres + offset for offset in ([0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1])]
    )
    found = cluster(points, 3)
    assert found.inertia == pytest.approx(12 * 0.01)  # each point is 0.1 from its centre
    assert found.spread == pytest.approx(
        0.12 + 4 * (200 - 2 * 100 / 3)
    )  # sums of squares: inside and between (by hand)
    assert found.silhouette > 0.97
    noise = np.random.default_rng(0).normal(size=(60, 2))
    assert cluster(noise, 3).silhouette < 0.6 and cluster(noise * 7, 3).silhouette == pytest.approx(
        cluster(noise, 3).silhouette
    )
    for count in (1, 12):
        with pytest.raises(
            ClusterError,
            match=f"the number of clusters is {count}; it must be at least 2 and below",
        ):
            cluster(points, count)


@pytest.mark.parametrize(
    "gains, expected",
    [
        ([1, 1, 1], math.inf),
        ([-0.1, 1, 1], 0),
        ([1, 0, 0], math.inf),
        # by hand: the gain falls from 1 at share 0.5 to -1 at share 0.75; zero at 0.625, alpha 5/3
        ([1, -1, 1], 5 / 3),
        # from 1 at share 0.75 to -3 at share 1: zero at 0.8125, alpha 13/3
        ([2, 1, -3], 13 / 3),
    ],
)
def test_break_even(gains, expected):
    assert break_even([1, 3, math.inf], gains) == pytest.approx(expected)


def test_ratios_must_ascend():
    for ratios in ([3, 1], [0, 1], [1, 1], []):
        with pytest.raises(ValueError, match="must be above 0 and ascend"):
            break_even(ratios, [1] * len(ratios))


REFERENCE = [
    f"the {colour} {thing} is on the table number {i}"
    for i, (colour, thing) in enumerate(
        [
            (c, t)
            for c in ("red", "green", "blue", "black")
            for t in ("book", "cup", "lamp", "box", "dog")
        ]
    )
]


def spoilt(every, seed=0):
    """The reference with a wrong word in one of `every` sentences."""
    return [
        line.replace("table", "chair") if (i + seed) % every == 0 else line
        for i, line in enumerate(REFERENCE)
    ]


def test_statistics_add_up_to_corpus_bleu():
    hypotheses = spoilt(3)
    expected = sacrebleu.corpus_bleu(hypotheses, [REFERENCE], lowercase=True).score
    assert bleu_of(bleu_statistics(hypotheses, REFERENCE).sum(0)) == pytest.approx(expected)


def test_alpha_star_and_its_interval():
    frozen = bleu_statistics(spoilt(3), REFERENCE)
    levels = {"better": 6, "same": 3, "worse": 2}

    def measured(*names):
        return [
            [bleu_statistics(spoilt(levels[name], seed), REFERENCE) for seed in (0, 1)]
            for name in names
        ]

    ratios = [1, 3, math.inf]
    sure = alpha_star(ratios, measured("better", "better", "better"), frozen, samples=50)
    assert sure.alpha == math.inf and sure.share < 0.5
    found = alpha_star(ratios, measured("better", "better", "worse"), frozen, samples=200)
    assert 3 < found.alpha < math.inf
    assert (
        found.interval[0] <= found.alpha <= found.interval[1]
        and found.interval[0] < found.interval[1]
    )
    assert alpha_star(ratios, measured("worse", "worse", "worse"), frozen, samples=50).alpha == 0
