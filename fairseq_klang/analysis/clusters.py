"""How well a set of vectors falls into clusters: K-means, its silhouette and its inertia."""

from typing import NamedTuple

import numpy as np

from ..errors import KlangError

STARTS = 20


class ClusterError(KlangError):
    """Vectors that cannot be clustered, or scikit-learn missing."""


class Clusters(NamedTuple):
    """Indices of K-means, each the mean over its starts, with the standard deviation over them.

    `silhouette` is in [-1, 1], higher is tighter. `relative_inertia` in [0, 1] is the sum of
    squared distances to the centres over that to the common mean; lower is tighter, and the
    vectors' scale does not matter. A difference below the deviations says nothing: K-means itself
    varies so much.
    """

    silhouette: float
    silhouette_sd: float
    relative_inertia: float
    relative_inertia_sd: float


def cluster(vectors: np.ndarray, count: int, seed: int = 0, starts: int = STARTS) -> Clusters:
    """K-means of vectors [N, d] into `count` clusters, from `starts` starts of their own.

    Raises ClusterError for fewer than count + 1 vectors, fewer than two clusters, or without
    scikit-learn.
    """
    try:
        from sklearn.cluster import KMeans
        from sklearn.metrics import pairwise_distances, silhouette_score
    except ImportError:
        raise ClusterError(
            "clustering needs scikit-learn: pip install 'fairseq-klang[analysis]'"
        ) from None
    vectors = np.asarray(vectors, dtype=np.float64)
    if not 2 <= count < len(vectors):
        raise ClusterError(
            f"the number of clusters is {count}; it must be at least 2 and below the number of "
            f"vectors, {len(vectors)}"
        )
    distances = pairwise_distances(vectors)
    spread = ((vectors - vectors.mean(0)) ** 2).sum()
    indices = []
    for start in range(starts):
        model = KMeans(count, n_init=1, random_state=seed + start).fit(vectors)
        silhouette = silhouette_score(distances, model.labels_, metric="precomputed")
        indices.append((silhouette, model.inertia_ / spread))
    means, deviations = np.mean(indices, 0), np.std(indices, 0, ddof=1)
    return Clusters(float(means[0]), float(deviations[0]), float(means[1]), float(deviations[1]))
