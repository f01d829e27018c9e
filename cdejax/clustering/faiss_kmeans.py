"""Spherical k-means with FAISS on the CPU: the reference implementation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from cdejax.config import ClustersConfig

NAME = "faiss"


def train(
    points: Float[np.ndarray, "points dim"],
    k: int,
    settings: ClustersConfig,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> Float[np.ndarray, "k dim"]:
    """Unit centroids of spherical k-means on all of `points`.

    The best of `nredo` restarts of `niter` iterations by total inner product; equal
    inputs and seeds yield equal centroids on one machine. A restart ends early once an
    iteration does not change the objective. FAISS does not report its progress, so
    `advance` is not called.
    """
    import faiss

    kmeans = faiss.Kmeans(
        points.shape[1],
        k,
        niter=settings.niter,
        nredo=settings.nredo,
        seed=seed,
        spherical=True,
        # The caller has already sampled: FAISS must neither sample nor warn.
        max_points_per_centroid=-(-len(points) // k),
        min_points_per_centroid=1,
    )
    kmeans.train(np.ascontiguousarray(points, np.float32))
    return np.asarray(kmeans.centroids)


def nearest(
    centroids: Float[np.ndarray, "k dim"],
) -> Callable[[Float[np.ndarray, "points dim"]], Int[np.ndarray, "points"]]:
    """A function that maps points to the centroids with the largest inner product."""
    import faiss

    index = faiss.IndexFlatIP(centroids.shape[1])
    index.add(np.ascontiguousarray(centroids))  # type: ignore[call-arg]
    return lambda points: index.search(points, 1)[1][:, 0]  # type: ignore[call-arg]
