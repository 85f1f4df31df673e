"""How often the test of analysis/significance.py is wrong: simulated pairs of systems, with and
without an effect of the seed. docs/statistics.md shows the figures.

    klang study significance --out docs/results/significance.csv
"""

import argparse
from typing import Iterator, NamedTuple, Sequence

import numpy as np
from scipy.stats import binomtest
from tqdm import tqdm

from ..analysis.significance import paired_bootstrap
from ..analysis.tables import Row, provenance, write_rows
from .options import number

SENTENCES, SAMPLES = 200, 399
DIFFERENCE = 6.0  # of the simulated pairs that do differ

# Standard deviations of the seeds' effect, and shares of the sentences' variance that each seed has
# for itself.
EFFECTS = (0.0, 1.0, 3.0)
SHARES = (1 / 3, 2 / 3, 1.0)


class Simulated(NamedTuple):
    """Shares of draws, in [0, 1]."""

    significant: float  # p below 0.05
    covered: float  # the 95 % interval holds the true difference
    trained: float  # it holds the mean difference of the trainings drawn


def mean(sums: np.ndarray) -> np.ndarray:
    """The score of sentence statistics (value, 1): the mean value."""
    return sums[..., 0] / sums[..., 1]


def draw(
    generator: np.random.Generator, seeds: int, effect: float, own: float
) -> Sequence[np.ndarray]:
    """(differences of sentences [R, N], of trainings [R]) of two systems that do not differ.

    The mean over sentences has a standard deviation of 1 for each seed. A part of its variance,
    `own`, is that seed's alone; the rest is shared, as each seed translates the same sentences.
    Sentences have a skewed distribution, as those of BLEU's counts do. `effect` is the standard
    deviation of the trainings' difference.
    """

    def skewed(*shape: int) -> np.ndarray:  # mean 0, variance N, skewness 1
        return (generator.gamma(4, size=shape) - 4) / 2 * SENTENCES**0.5

    trained = effect * generator.normal(size=seeds)
    shared = (1 - own) ** 0.5 * skewed(1, SENTENCES)
    return trained[:, None] + shared + own**0.5 * skewed(seeds, SENTENCES), trained


def simulate(
    seeds: int,
    effect: float,
    own: float = 2 / 3,
    difference: float = 0.0,
    draws: int = 1000,
    random: int = 1,
) -> Simulated:
    """What the test says of `draws` pairs of systems that differ by `difference`.

    seeds, effect, own: as in draw; random: the seed of the simulation.
    """
    generator, counts = np.random.default_rng(random), np.zeros(3)
    for _ in range(draws):
        values, trained = draw(generator, seeds, effect, own)
        ones, first = np.ones_like(values), generator.normal(size=values.shape)
        found = paired_bootstrap(
            np.stack([first, ones], -1),
            np.stack([first + values + difference, ones], -1),
            mean,
            samples=SAMPLES,
            seed=int(generator.integers(2**31)),
        )
        low, high = found.interval
        counts += (
            found.p_value < 0.05,
            low <= difference <= high,
            low <= difference + trained.mean() <= high,
        )
    return Simulated(*(counts / draws))


def rows(draws: int) -> Iterator[Row]:
    """The figures of docs/statistics.md."""
    cases = [
        (seeds, effect, own, difference)
        for seeds in (1, 2, 3, 4)
        for effect in EFFECTS
        for own in (SHARES if seeds > 1 else (0.0,))
        for difference in (0.0, DIFFERENCE)
        if not difference or own in (0.0, 2 / 3)
    ]
    made = provenance()
    for random, (seeds, effect, own, difference) in enumerate(tqdm(cases, unit="case")):
        found = simulate(seeds, effect, own, difference, draws, random)
        settings = dict(count=seeds, effect=effect, own=round(own, 2), difference=difference)
        measures = [("power" if difference else "size", found.significant)]
        if not difference:
            measures.append(("coverage", found.covered))
            if seeds == 1:
                measures.append(("coverage of the trainings", found.trained))
        for measure, share in measures:
            known = binomtest(round(share * draws), draws).proportion_ci()
            yield Row(
                "simulated pair",
                measure,
                round(100 * share, 2),
                low=round(100 * known.low, 2),
                high=round(100 * known.high, 2),
                n=draws,
                settings=settings,
                **made,
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klang study significance`."""
    parser.add_argument("--out", required=True, metavar="CSV", help="the file to write")
    parser.add_argument(
        "--draws",
        type=number(int, 1),
        default=2000,
        metavar="N",
        help="pairs of systems for each case (default: 2000, some minutes)",
    )
    parser.set_defaults(resumes=False)


def run(options: argparse.Namespace) -> int:
    """Simulate every case and write the file; returns the exit status."""
    write_rows(options.out, list(rows(options.draws)))
    print(f"written: {options.out}")
    return 0
