"""Cluster indices: known answers, and what K-means' own starts make of them."""

import numpy as np
import pytest

from fairseq_klang.analysis.clusters import STARTS, ClusterError, cluster

CENTRES = np.array([[0, 0], [10, 0], [0, 10]])
# each point is 0.1 from the centre of its three
POINTS = np.concatenate([CENTRES + offset for offset in ([0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1])])
# sums of squares inside and between the groups, by hand
INSIDE, BETWEEN = 12 * 0.01, 4 * (200 - 2 * 100 / 3)


def test_tight_groups_are_found():
    found = cluster(POINTS, 3)
    assert found.relative_inertia == pytest.approx(INSIDE / (INSIDE + BETWEEN), rel=0.1)
    assert found.silhouette > 0.97
    noise = np.random.default_rng(0).normal(size=(60, 2))
    assert cluster(noise, 3).silhouette < 0.6
    assert cluster(noise * 7, 3) == pytest.approx(cluster(noise, 3))


def test_indices_are_means_over_the_starts_and_their_spread():
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    noise = np.random.default_rng(1).normal(size=(50, 3))
    total = ((noise - noise.mean(0)) ** 2).sum()
    models = [KMeans(5, n_init=1, random_state=start).fit(noise) for start in range(STARTS)]
    silhouettes = [silhouette_score(noise, model.labels_) for model in models]
    inertias = [model.inertia_ / total for model in models]
    expected = [f(values) for values in (silhouettes, inertias) for f in (np.mean, sample_sd)]
    assert STARTS == 20 and cluster(noise, 5) == pytest.approx(tuple(expected))
    assert cluster(noise, 5).silhouette_sd > 0.005  # the starts do differ


def sample_sd(values):
    return np.std(values, ddof=1)


@pytest.mark.parametrize("count", [1, 12])
def test_numbers_of_clusters_that_make_no_sense(count):
    with pytest.raises(
        ClusterError, match=f"the number of clusters is {count}; it must be at least 2 and below"
    ):
        cluster(POINTS, count)
