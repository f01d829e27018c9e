"""Chooses which texts of a corpus become its context.

A trained model reads at most C context vectors. They can be sampled at random, as in
training, or to represent the corpus better: by k-means++ seeding (Arthur and
Vassilvitskii 2007), which spreads them, or as the medoids of spherical k-means, the
most central text of each cluster. Both use the directions of first-stage vectors.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from cdejax.counts import check_count
from cdejax.data.given_texts import as_rows
from cdejax.models.context import Context, Fill, Method, Origin, hash_texts, sample
from cdejax.models.similarity import unit

CANDIDATES_PER_TEXT = 8
"""Default number of candidates for each text to choose."""
_EQUAL = 1e-6
_ITERATIONS = 25
_RANDOM_STATE = {"kmeans++": 1, "medoids": 2, "resample": 3}


@dataclass(frozen=True)
class Choice:
    """How to choose a context.

    Raises:
      ValueError: a size outside 0…C, a negative seed, an unknown method or fill, fewer
        candidates than texts to choose, or candidates for a random choice.
    """

    capacity: int
    """Maximum number of context texts of the model, C."""
    size: int | None = None
    """Number of texts to choose (default: C)."""
    seed: int = 0
    """Seed of all random draws."""
    method: Method = "random"
    """How texts are chosen from the candidates."""
    candidates: int | None = None
    """Number of candidates for `kmeans++` and `medoids` (default: 8 times the size)."""
    fill: Fill = "mask"
    """How to fill up to C if fewer texts are chosen."""

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)
        for name in ("size", "candidates"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, 0)
        if self.target_size > self.capacity:
            raise ValueError(
                f"size {self.size}: this model reads 0 to {self.capacity} context "
                "texts (trained C)"
            )
        for name, kinds in (("method", Method), ("fill", Fill)):
            known = typing.get_args(kinds)
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} {getattr(self, name)!r}: choose one of {', '.join(known)}"
                )
        if self.fill == "resample" and not self.target_size:
            raise ValueError("fill 'resample': size 0 leaves no text to draw from")
        if self.candidates is None:
            return
        if self.method == "random":
            raise ValueError(
                f"candidates {self.candidates}: method 'random' looks at no text; "
                "leave it out"
            )
        if self.candidates < self.target_size:
            raise ValueError(
                f"candidates {self.candidates}: give {self.target_size} (the texts to "
                "choose) or more"
            )

    @property
    def target_size(self) -> int:
        """Number of texts to choose."""
        return self.capacity if self.size is None else self.size

    def candidates_of(self, texts: Sequence[str]) -> Int[np.ndarray, "candidates"]:
        """Samples the texts to encode with the first stage; ascending indices.

        Raises:
          ValueError: no texts, or a single string instead of a list.
        """
        texts = as_rows(texts)
        if not self.target_size:
            return np.arange(0)
        if not len(texts):
            raise ValueError("no texts to draw from; size=0 gives the null context")
        count = self.target_size
        if self.method != "random":
            count = self.candidates or CANDIDATES_PER_TEXT * self.target_size
        return sample(len(texts), count, self.seed)

    def context(
        self,
        texts: Sequence[str],
        rows: Int[np.ndarray, "candidates"],
        vectors: Float[np.ndarray, "candidates hidden"],
        model: str,
    ) -> Context:
        """Chooses the context among the candidates.

        Args:
          texts: the corpus.
          rows: indices of the candidates in it (`candidates_of`).
          vectors: first-stage vectors of the candidates.
          model: hash of the weights that computed them.
        """
        chosen = self._choose(vectors)
        if self.fill == "resample":
            chosen = resample(chosen, self.capacity, self.seed)
        ids = rows[chosen]
        used = hash_texts([texts[int(row)] for row in ids])
        corpus = len(texts) if len(rows) else 0
        origin = Origin(self.method, len(rows), self.fill, corpus, self.capacity, used)
        mask = np.ones(len(ids), bool)
        return Context(ids, vectors[chosen], mask, self.seed, model, origin)

    def _choose(
        self, vectors: Float[np.ndarray, "candidates hidden"]
    ) -> Int[np.ndarray, "texts"]:
        if len(vectors) <= self.target_size:
            return np.arange(len(vectors))
        pick = kmeans_plus_plus if self.method == "kmeans++" else medoids
        return pick(vectors, self.target_size, self.seed)


def kmeans_plus_plus(
    vectors: Float[np.ndarray, "rows hidden"], count: int, seed: int
) -> Int[np.ndarray, "count"]:
    """k-means++ seeding: distinct rows, sampled by squared distance to the chosen ones.

    Distances are between unit vectors. If all remaining rows equal chosen ones, the
    rest is sampled uniformly. Returns `count` ascending indices; `count` must not
    exceed the number of rows.
    """
    points = unit(vectors).astype(np.float32)
    rng = np.random.default_rng([_RANDOM_STATE["kmeans++"], seed])
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    for _ in range(count - 1):
        distance = np.minimum(distance, 2 - 2 * (points @ points[chosen[-1]]))
        weight = np.where(distance > _EQUAL, distance, 0.0)
        if not weight.any():
            break
        chosen.append(int(rng.choice(len(points), p=weight / weight.sum())))
    return _completed(np.array(chosen), len(points), count, rng)


def medoids(
    vectors: Float[np.ndarray, "rows hidden"], count: int, seed: int
) -> Int[np.ndarray, "count"]:
    """The row nearest to each centroid of spherical k-means with `count` clusters.

    k-means starts from `kmeans_plus_plus`. Each cluster contributes the member with the
    largest cosine to its centroid, empty clusters a random row. Returns `count`
    ascending indices; `count` must not exceed the number of rows.
    """
    import faiss

    points = unit(vectors).astype(np.float32)
    rng = np.random.default_rng([_RANDOM_STATE["medoids"], seed])
    start = points[kmeans_plus_plus(points, count, seed)]
    kmeans = faiss.Kmeans(
        points.shape[1],
        count,
        niter=_ITERATIONS,
        seed=seed % 2**31,  # FAISS takes an int
        spherical=True,
        # The candidates are a sample already: FAISS must not sample again or warn.
        max_points_per_centroid=-(-len(points) // count),
        min_points_per_centroid=1,
    )
    kmeans.train(points, init_centroids=start)
    cosine = points @ np.asarray(kmeans.centroids).T
    cluster, best = cosine.argmax(1), cosine.max(1)
    order = np.lexsort((-best, cluster))  # best member of each cluster first
    first = np.unique(cluster[order], return_index=True)[1]
    return _completed(order[first], len(points), count, rng)


def resample(
    rows: Int[np.ndarray, "rows"], count: int, seed: int
) -> Int[np.ndarray, "count"]:
    """Fills up to `count` with rows sampled with replacement; ascending."""
    rng = np.random.default_rng([_RANDOM_STATE["resample"], seed])
    more = rng.choice(rows, max(count - len(rows), 0))
    return np.sort(np.concatenate([rows, more]))


def _completed(
    chosen: Int[np.ndarray, "chosen"], rows: int, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "count"]:
    """Fills up to `count` with other rows, sampled uniformly; ascending."""
    rest = np.setdiff1d(np.arange(rows), chosen)
    more = rng.choice(rest, count - len(chosen), replace=False)
    return np.sort(np.concatenate([chosen, more]))
