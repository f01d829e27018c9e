"""Spherical k-means within each domain (CDE, Morris & Rush, section 4; spec 4.1-4.2).

A pair yields one or two training points. With `paired` vectors these are [q;d] and
[d;q], so that clusters gather pairs whose queries lie near each other's documents: the
sum of both in-batch scores is the inner product of [q;d] with [d';q']. Pairs are then
assigned by [q;d] alone. Some centroids attract only [d;q] points, so their clusters
remain empty. As in the reference, `k` counts centroids *before* assignment; empty
clusters are dropped, the rest renumbered, and both numbers reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt

from cdejax.clustering.files import check_origin
from cdejax.clustering.vectors import Vectors, unit_rows
from cdejax.config import ClustersConfig, Config
from cdejax.data.pairs import Pairs
from cdejax.runtime.progress import progress
from cdejax.runtime.streaming import prefetch
from cdejax.storage import artifacts

BLOCK = 65536
"""Number of points assigned at once."""
SVD_FIT_ROWS = 100_000
"""Maximum number of query vectors that the optional SVD is fitted on."""


@dataclass(frozen=True)
class Clusters:
    """Non-empty clusters of training pairs, with ids unique across domains."""

    cluster: Int[np.ndarray, "pairs"]
    centroid: Float[np.ndarray, "clusters dim"]
    """Mean document vector of each cluster."""
    cluster_domain: Int[np.ndarray, "clusters"]

    @classmethod
    def open(cls, folder: str | Path) -> Clusters:
        """Memory-maps a finished clusters artefact; ValueError if it is not one."""
        artifacts.read_manifest(folder)
        names = ("cluster", "centroid", "cluster_domain")
        return cls(*(artifacts.load_array(Path(folder) / f"{n}.npy") for n in names))


def clusters_stage(
    config: Config, root: str | Path, pairs_folder: str | Path, vectors: str | Path
) -> Path:
    """Clusters the training pairs of a pairs artefact by their surrogate vectors.

    Args:
      config: the recipe; `config.clusters` and the seed are used.
      root: folder of all artefacts.
      pairs_folder: the pairs artefact.
      vectors: the vectors artefact made from it.

    Returns:
      The artefact folder: `cluster.npy`, `centroid.npy`, `cluster_domain.npy`.

    Raises:
      ValueError: the vectors were made for another pairs artefact, or as
        `cluster_pairs`.
    """

    spec = {
        "pairs": artifacts.artifact_fingerprint(pairs_folder),
        "vectors": artifacts.artifact_fingerprint(vectors),
        "clusters": config.clusters,
        "seed": config.seed,
    }
    check_origin(Path(vectors), f"{vectors}", spec["pairs"])

    def build(folder: Path) -> dict[str, Any]:
        pairs, table = Pairs.open(pairs_folder), Vectors.open(vectors)
        train = pairs.train
        clusters, counts = cluster_pairs(
            table.queries,
            table.documents,
            np.stack([train.query, train.document], 1),
            train.domain,
            pairs.domains,
            config.clusters,
            config.seed,
        )
        for name in ("cluster", "centroid", "cluster_domain"):
            np.save(folder / f"{name}.npy", getattr(clusters, name))
        return counts

    return artifacts.run_stage(root, "clusters", spec, build)


def cluster_pairs(
    queries: Float[np.ndarray, "queries dim"],
    documents: Float[np.ndarray, "documents dim"],
    pairs: Int[np.ndarray, "pairs 2"],
    domain: Int[np.ndarray, "pairs"],
    names: Sequence[str],
    settings: ClustersConfig,
    seed: int,
) -> tuple[Clusters, dict[str, Any]]:
    """Clusters pairs, each domain separately.

    Args:
      queries: unit vectors of query rows, float32.
      documents: unit vectors of document rows, float32.
      pairs: query and document row of each pair.
      domain: domain number of each pair.
      names: names of the domains.
      settings: see `ClustersConfig`.
      seed: seed of samples, restarts and the optional SVD.

    Returns:
      The clusters, and counts per domain: rows, distinct rows, training points (also
      per centroid), requested k, non-empty clusters, and the size of the largest.

    Raises:
      ValueError: a domain has fewer distinct pairs than requested clusters, or a vector
        holds NaN.
    """
    project = _fit_svd(queries, pairs[:, 0], settings.svd_dim, seed)
    cluster = np.zeros(len(pairs), np.int32)
    centroids, owners, counts, first = [], [], {}, 0
    rounds = settings.niter * settings.nredo
    with progress("k-means, pairs x iterations", len(pairs) * rounds) as advance:
        for number in np.unique(domain):
            rows, name = np.flatnonzero(domain == number), names[int(number)]
            points = Points(queries, documents, pairs[rows], settings.vectors, project)
            left = rounds

            def iteration(count: int = len(rows)) -> None:
                nonlocal left
                left -= 1
                advance(count)

            ids, counted = cluster_points(points, name, settings, seed, iteration)
            cluster[rows] = first + ids
            centroids.append(cluster_means(documents, pairs[rows, 1], ids))
            counts[name] = counted
            owners.append(np.full(counted["clusters"], number, np.int32))
            first += counted["clusters"]
            advance(left * len(rows))
    result = Clusters(cluster, np.concatenate(centroids), np.concatenate(owners))
    totals = {
        key: sum(c[key] for c in counts.values())
        for key in ("rows", "k_asked", "clusters", "training_points")
    }
    backend = backend_of(settings).NAME
    return result, {"backend": backend, **totals, "domains": counts}


@dataclass(frozen=True)
class Points:
    """Vectors that represent pairs, computed on demand since a domain may be large."""

    queries: Float[np.ndarray, "queries dim"]
    documents: Float[np.ndarray, "documents dim"]
    pairs: Int[np.ndarray, "pairs 2"]
    kind: str
    """`paired`, `query`, `document` or `concat`."""
    project: Callable[
        [Float[np.ndarray, "rows dim"]], Float[np.ndarray, "rows dim"]
    ] = unit_rows

    def __len__(self) -> int:
        return len(self.pairs)

    def __call__(
        self, rows: Int[np.ndarray, "rows"], swapped: bool = False
    ) -> Float[np.ndarray, "rows point"]:
        """Unit vectors of the given pairs: [q;d] (`swapped`: [d;q]), or one side."""
        columns = self._columns()[::-1] if swapped else self._columns()
        parts = [self.project(table[self.pairs[rows, c]]) for table, c in columns]
        return unit_rows(np.concatenate(parts, axis=1))

    def keys(self) -> UInt[np.ndarray, "pairs parts"]:
        """Hashes of the parts: pairs with equal keys are the same point.

        (Among a million different vectors, a collision has a probability below 10^-7.)
        """
        sides = ("query", "document")
        parts = [hash_rows(t, self.pairs[:, c], sides[c]) for t, c in self._columns()]
        return np.stack(parts, axis=1)

    def _columns(self) -> list[tuple[np.ndarray, int]]:
        columns = [(self.queries, 0), (self.documents, 1)]
        return {"query": columns[:1], "document": columns[1:]}.get(self.kind, columns)


def cluster_points(
    points: Points,
    name: str,
    settings: ClustersConfig,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> tuple[Int[np.ndarray, "pairs"], dict[str, Any]]:
    """Clusters the pairs of one domain: ids 0, 1, … without gaps, and counts.

    `advance` is called after every iteration if the backend reports progress.
    """
    k = settings.k or -(-len(points) // settings.cluster_size)
    keys = points.keys()
    distinct = np.unique(keys, axis=0, return_index=True)[1]
    if len(distinct) < k:
        raise ValueError(
            f"clusters: domain {name!r} has {len(distinct)} distinct points in "
            f"{len(points)} rows, fewer than k = {k}. Lower clusters.k or raise "
            "clusters.cluster_size."
        )
    training = _training_points(points, keys, np.sort(distinct), k, settings, seed)
    if k == 1:
        ids = np.zeros(len(points), np.int64)
    else:
        backend = backend_of(settings)
        centroids = backend.train(training, k, settings, seed, advance)
        ids = assign(points, backend.nearest(centroids))
    kept, ids, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    return ids.astype(np.int32), {
        "rows": len(points),
        "distinct_rows": len(distinct),
        "training_points": len(training),
        "points_per_centroid": round(len(training) / k, 1),
        "k_asked": k,
        "clusters": len(kept),
        "empty": k - len(kept),
        "largest": int(sizes.max()),
    }


def _training_points(
    points: Points,
    keys: np.ndarray,
    distinct: np.ndarray,
    k: int,
    settings: ClustersConfig,
    seed: int,
) -> Float[np.ndarray, "training point"]:
    """Distinct points, in both orders for `paired`, up to a limit per centroid."""
    swapped = np.zeros(len(distinct), bool)
    rows = distinct
    if settings.vectors == "paired":
        # Where both sides are equal, so are [q;d] and [d;q].
        turned = distinct[keys[distinct, 0] != keys[distinct, 1]]
        rows = np.concatenate([distinct, turned])
        swapped = np.arange(len(rows)) >= len(distinct)
    most = k * settings.points_per_centroid
    if len(rows) > most:
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(len(rows), most, replace=False))
        rows, swapped = rows[chosen], swapped[chosen]
    straight, turned = points(rows[~swapped]), points(rows[swapped], swapped=True)
    return np.concatenate([straight, turned])


def backend_of(settings: ClustersConfig) -> Any:
    """The module that computes k-means: `faiss_kmeans` or `jax_kmeans`."""
    name = settings.backend
    if name == "auto":
        from cdejax.runtime.mesh import local_mesh
        from cdejax.runtime.platforms import platform

        name = "faiss" if platform(local_mesh()) == "cpu" else "jax"
    return importlib.import_module(f"cdejax.clustering.{name}_kmeans")


def assign(
    points: Points,
    nearest: Callable[[Float[np.ndarray, "rows point"]], Int[np.ndarray, "rows"]],
) -> Int[np.ndarray, "pairs"]:
    """The nearest centroid of every pair, computed block by block."""
    rows = np.arange(len(points))
    blocks = (rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK))
    # points are made on the host ahead of time, so a device backend does not wait
    return np.concatenate([nearest(block) for block in prefetch(points, blocks)])


def cluster_means(
    x: Float[np.ndarray, "rows dim"],
    rows: Int[np.ndarray, "pairs"],
    ids: Int[np.ndarray, "pairs"],
) -> Float[np.ndarray, "clusters dim"]:
    """Mean of `x[rows]` over each cluster (ids 0, 1, … without gaps)."""
    sums = np.zeros((int(ids.max()) + 1, x.shape[1]), np.float32)
    for i in range(0, len(rows), BLOCK):
        np.add.at(sums, ids[i : i + BLOCK], x[rows[i : i + BLOCK]])
    return sums / np.bincount(ids)[:, None].astype(np.float32)


def hash_rows(
    x: Float[np.ndarray, "rows dim"], rows: Int[np.ndarray, "pairs"], side: str = ""
) -> UInt[np.ndarray, "pairs"]:
    """64-bit hashes of `x[rows]`: equal rows get equal hashes.

    Raises:
      ValueError: a row holds NaN or infinite values, which k-means cannot handle.
    """
    factors = np.random.default_rng(0).integers(1, 2**63, x.shape[1], np.uint64) * 2 + 1
    hashes = []
    for i in range(0, len(rows), BLOCK):
        block = np.ascontiguousarray(x[rows[i : i + BLOCK]], np.float32)
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            row = int(rows[i + finite.argmin()])
            raise ValueError(
                f"clusters: {side} vector {row} holds NaN or infinite values. "
                "Write the vectors again."
            )
        bits = block.view(np.uint32).astype(np.uint64)
        hashes.append(_mix(bits * factors).sum(axis=1, dtype=np.uint64))
    return np.concatenate(hashes)


def _mix(x: UInt[np.ndarray, "..."]) -> UInt[np.ndarray, "..."]:
    """Mixes every bit into the others, so that sums of parts do not collide."""
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


def _fit_svd(queries: np.ndarray, rows: np.ndarray, dim: int | None, seed: int):
    """A projection to unit vectors of `dim` dimensions, fitted on query vectors."""
    if dim is None:
        return unit_rows
    from sklearn.decomposition import TruncatedSVD

    rows = np.unique(rows)
    if len(rows) > SVD_FIT_ROWS:
        rng = np.random.default_rng(seed)
        rows = np.sort(rng.choice(rows, SVD_FIT_ROWS, replace=False))
    if dim > min(len(rows), queries.shape[1]):
        raise ValueError(
            f"clusters.svd_dim: {dim}, but {len(rows)} query vectors of "
            f"{queries.shape[1]} dimensions allow {min(len(rows), queries.shape[1])}."
        )
    svd = TruncatedSVD(dim, random_state=seed).fit(queries[rows])
    return lambda x: unit_rows(svd.transform(x))
