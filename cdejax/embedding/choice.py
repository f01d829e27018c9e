"""Which texts of a corpus become its context.

A trained model reads at most C vectors. They may be drawn at random, as in training,
or stand for the corpus better than chance does: by k-means++ seeding (Arthur and
Vassilvitskii 2007), which spreads them, or as the medoids of spherical k-means, one
text from the middle of each cluster. Both look at first-stage vectors by direction.
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
"""Candidates for each place, unless said otherwise."""
_EQUAL = 1e-6
_ITERATIONS = 25
_RANDOM_STATE = {"kmeans++": 1, "medoids": 2, "resample": 3}


@dataclass(frozen=True)
class Choice:
    """How to choose a context.

    Raises:
      ValueError: a size outside 0…C, a negative seed, an unknown method or fill, fewer
        candidates than places, or candidates for a random choice.
    """

    most: int
    """Places that the model was trained with, C."""
    size: int | None = None
    """Texts at most (default: C)."""
    seed: int = 0
    """Of everything drawn."""
    method: Method = "random"
    """How texts are chosen from the candidates."""
    candidates: int | None = None
    """Texts looked at by `kmeans++` and `medoids` (default: 8 for each place)."""
    fill: Fill = "mask"
    """What stands in the places that the texts leave."""

    def __post_init__(self) -> None:
        check_count("seed", self.seed, 0)
        for name in ("size", "candidates"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, 0)
        if self.places > self.most:
            raise ValueError(
                f"size {self.size}: this model reads 0 to {self.most} context texts "
                "(trained C)"
            )
        for name, kinds in (("method", Method), ("fill", Fill)):
            known = typing.get_args(kinds)
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} {getattr(self, name)!r}: choose one of {', '.join(known)}"
                )
        if self.fill == "resample" and not self.places:
            raise ValueError("fill 'resample': size 0 leaves no text to draw from")
        if self.candidates is None:
            return
        if self.method == "random":
            raise ValueError(
                f"candidates {self.candidates}: method 'random' looks at no text; "
                "leave it out"
            )
        if self.candidates < self.places:
            raise ValueError(
                f"candidates {self.candidates}: give {self.places} (the texts to "
                "choose) or more"
            )

    @property
    def places(self) -> int:
        """Texts to choose at most."""
        return self.most if self.size is None else self.size

    def candidates_of(self, texts: Sequence[str]) -> Int[np.ndarray, "candidates"]:
        """Positions of the texts to embed, ascending.

        Raises:
          ValueError: no texts, or one string instead of a list.
        """
        texts = as_rows(texts)
        if not self.places:
            return np.arange(0)
        if not len(texts):
            raise ValueError("no texts to draw from; size=0 gives the null context")
        count = self.places
        if self.method != "random":
            count = self.candidates or CANDIDATES_PER_TEXT * self.places
        return sample(len(texts), count, self.seed)

    def context(
        self,
        texts: Sequence[str],
        rows: Int[np.ndarray, "candidates"],
        vectors: Float[np.ndarray, "candidates hidden"],
        model: str,
    ) -> Context:
        """The context, from the candidates' vectors.

        Args:
          texts: the corpus.
          rows: positions of the candidates in it (`candidates_of`).
          vectors: the candidates' first-stage vectors.
          model: hash of the weights that made them.
        """
        chosen = self._choose(vectors)
        if self.fill == "resample":
            chosen = resample(chosen, self.most, self.seed)
        ids = rows[chosen]
        used = hash_texts([texts[int(row)] for row in ids])
        corpus = len(texts) if len(rows) else 0
        origin = Origin(self.method, len(rows), self.fill, corpus, self.most, used)
        mask = np.ones(len(ids), bool)
        return Context(ids, vectors[chosen], mask, self.seed, model, origin)

    def _choose(
        self, vectors: Float[np.ndarray, "candidates hidden"]
    ) -> Int[np.ndarray, "texts"]:
        if len(vectors) <= self.places:
            return np.arange(len(vectors))
        pick = kmeans_plus_plus if self.method == "kmeans++" else medoids
        return pick(vectors, self.places, self.seed)


def kmeans_plus_plus(
    vectors: Float[np.ndarray, "rows hidden"], count: int, seed: int
) -> Int[np.ndarray, "count"]:
    """`count` different rows, each drawn by its squared distance to the nearest so far.

    Distances are between unit vectors. Where all that is left equals a chosen row, the
    rest is drawn uniformly. Ascending; `count` is at most the number of rows.
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

    k-means starts from `kmeans_plus_plus`. A cluster gives the member of the largest
    cosine to its centroid; for a cluster without members a row is drawn. Ascending;
    `count` is at most the number of rows.
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
        # The candidates are the sample: FAISS neither samples again nor warns.
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
    """All rows, and draws from them with replacement up to `count`; ascending."""
    rng = np.random.default_rng([_RANDOM_STATE["resample"], seed])
    more = rng.choice(rows, max(count - len(rows), 0))
    return np.sort(np.concatenate([rows, more]))


def _completed(
    chosen: Int[np.ndarray, "chosen"], rows: int, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "count"]:
    """The chosen rows and as many others, drawn uniformly, as they lack."""
    rest = np.setdiff1d(np.arange(rows), chosen)
    more = rng.choice(rest, count - len(chosen), replace=False)
    return np.sort(np.concatenate([chosen, more]))
