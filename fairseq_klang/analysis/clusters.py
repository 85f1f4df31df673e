"""How well a set of vectors falls into clusters: K-means, its silhouette and its inertia."""

from typing import NamedTuple

import numpy as np

from ..errors import KlangError


class ClusterError(KlangError):
    """Vectors that cannot be clustered, or scikit-learn missing."""


class Clusters(NamedTuple):
    """`silhouette` in [-1, 1], higher is tighter; `inertia`, the sum of squared distances to the
    centres; `spread`, that sum around the common mean. inertia / spread in [0, 1] does not depend
    on the vectors' scale; lower is tighter."""

    silhouette: float
    inertia: float
    spread: float


def cluster(vectors, count, seed=0):
    """K-means of vectors [N, d] into `count` clusters, the best of ten starts; returns
    :class:`Clusters`.

    Raises ClusterError for fewer than count + 1 vectors, fewer than two clusters, or without
    scikit-learn.
    """
    try:
        from sklearn.cluster import KMeans
        from sklearn.metrics import silhouette_score
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
    model = KMeans(count, n_init=10, random_state=seed).fit(vectors)
    spread = float(((vectors - vectors.mean(0)) ** 2).sum())
    return Clusters(float(silhouette_score(vectors, model.labels_)), float(model.inertia_), spread)
