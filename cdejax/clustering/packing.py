"""Packing: clusters are put in an order, then cut into batches (CDE; spec 4.3).

Batches are formed within a group: one domain, or several merged explicitly. A group's
clusters are ordered at random or by a greedy tour of nearest centroids; a cluster
larger than a batch is split, smaller ones share a batch with their neighbours in the
order. Unlike in the reference, no batch mixes two groups, and the rows left out because
they do not fill a batch are spread evenly: consecutive epochs leave out different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

NEIGHBOURS = 48
"""Number of nearest neighbours kept per centroid for the greedy tour."""


@dataclass(frozen=True)
class Group:
    """Pairs that may share batches, sorted by cluster."""

    name: str
    rows: Int[np.ndarray, "rows"]
    """Row numbers of training pairs, grouped by cluster."""
    sizes: Int[np.ndarray, "clusters"]
    """Number of rows of each cluster, in the order of `rows`."""
    tour: Tour | None = None
    """Greedy tours over the clusters; None for a random order."""

    @classmethod
    def whole(cls, name: str, rows: Int[np.ndarray, "rows"]) -> Group:
        """A group without clusters: its rows are simply shuffled."""
        return cls(name, rows, np.array([len(rows)]))

    @classmethod
    def clustered(
        cls,
        name: str,
        rows: Int[np.ndarray, "rows"],
        cluster: Int[np.ndarray, "rows"],
        centroid: Float[np.ndarray, "all_clusters dim"],
        order: str,
    ) -> Group:
        """A group of the given rows with their cluster ids.

        Args:
          name: name of the group.
          rows: row numbers of its training pairs.
          cluster: cluster id of each of them.
          centroid: mean document vectors of all clusters, by id.
          order: `random` or `tsp_greedy`.
        """
        by_cluster = np.argsort(cluster, kind="stable")
        ids, sizes = np.unique(cluster, return_counts=True)
        tour = Tour(centroid[ids]) if order == "tsp_greedy" else None
        return cls(name, rows[by_cluster], sizes, tour=tour)


class Tour:
    """Greedy tours over centroids: the next one is always the nearest unvisited one.

    The nearest neighbours of all centroids are computed once, for tours from any start.
    When all neighbours of a centroid have been visited, the remaining centroids are
    searched; visited ones are removed during the tour, so later searches are short.
    """

    def __init__(self, centroids: Float[np.ndarray, "clusters dim"]):
        import faiss

        self.points = np.ascontiguousarray(centroids, np.float32)
        self.norms = np.einsum("ij,ij->i", self.points, self.points)
        index = faiss.IndexFlatL2(self.points.shape[1])
        index.add(self.points)  # type: ignore[call-arg]
        count = min(NEIGHBOURS + 1, len(self.points))
        self.near = index.search(self.points, count)[1]  # type: ignore[call-arg]

    def __len__(self) -> int:
        return len(self.points)

    def order(self, start: int) -> Int[np.ndarray, "clusters"]:
        """All centroids in the order of the tour from `start` (L2 distance)."""
        visited = np.zeros(len(self), bool)
        left = _Left(self.points, self.norms)
        out = np.empty(len(self), np.int64)
        current = start
        for step in range(len(self)):
            out[step] = current
            visited[current] = True
            if step + 1 == len(self):
                break
            free = self.near[current][~visited[self.near[current]]]
            at = free[0] if len(free) else left.nearest(current, visited)
            current = int(at)
        return out


class _Left:
    """Unvisited centroids in contiguous memory, compacted once half are visited."""

    def __init__(self, points: np.ndarray, norms: np.ndarray):
        self.all, self.points, self.norms = points, points, norms
        self.ids = np.arange(len(points))

    def nearest(self, current: int, visited: np.ndarray) -> int:
        stale = visited[self.ids]
        if 2 * stale.sum() > len(stale):
            keep = ~stale
            self.ids, self.points = self.ids[keep], self.points[keep]
            self.norms, stale = self.norms[keep], stale[keep]
        distance = self.norms - 2 * (self.points @ self.all[current])
        distance[stale] = np.inf
        return int(self.ids[distance.argmin()])


def pack_epoch(
    groups: Sequence[Group], batch: int, seed: int, epoch: int
) -> Int[np.ndarray, "steps batch"]:
    """The batches of one epoch: row numbers of training pairs, int32.

    A pure function of its arguments. Every group yields ⌊rows / batch⌋ batches and
    leaves out the remaining rows; the batches of all groups are then permuted.

    Args:
      groups: groups of at least `batch` rows each.
      batch: rows per batch.
      seed: seed of the plan.
      epoch: number of the epoch, from 0.
    """
    parts = [
        pack_group(group, batch, seed, epoch, number)
        for number, group in enumerate(groups)
    ]
    steps = np.concatenate(parts)
    rng = np.random.default_rng([seed, epoch, len(groups)])
    return steps[rng.permutation(len(steps))].astype(np.int32)


def pack_group(
    group: Group, batch: int, seed: int, epoch: int, number: int = 0
) -> Int[np.ndarray, "steps batch"]:
    """The batches of one group: clusters in order, rows shuffled within each."""
    rng = np.random.default_rng([seed, epoch, number])
    clusters = len(group.sizes)
    if group.tour is None:
        order = rng.permutation(clusters)
    else:
        order = group.tour.order(int(rng.integers(clusters)))
    rank = np.empty(clusters, np.int64)
    rank[order] = np.arange(clusters)
    keep = np.ones(len(group.rows), bool)
    keep[left_out(len(group.rows), batch, seed, epoch, number)] = False
    row_rank = np.repeat(rank, group.sizes)[keep]
    layout = np.lexsort((rng.random(len(row_rank)), row_rank))
    return group.rows[keep][layout].reshape(-1, batch)


def left_out(
    rows: int, batch: int, seed: int, epoch: int, number: int = 0
) -> Int[np.ndarray, "dropped"]:
    """Positions of the `rows mod batch` rows that an epoch leaves out.

    Epochs advance cyclically through one random permutation, so consecutive epochs
    leave out different rows, and no row is left out again before most others were.
    """
    rest = rows % batch
    order = np.random.default_rng([seed, number]).permutation(rows)
    return order[(epoch * rest + np.arange(rest)) % rows]
