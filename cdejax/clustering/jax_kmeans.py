"""Spherical k-means on all devices of the process, following FAISS step by step.

Points are sharded over the devices, centroids are replicated. Every iteration finds
the centroid with the largest inner product tile by tile (points x centroids, carrying
the best so far), adds up the points of each centroid, and sums over the devices once.
Seeds, initial centroids and the handling of empty clusters are those of
`faiss.Clustering`, so both compute the same centroids up to rounding errors, which grow
with the iterations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from cdejax.clustering.vectors import unit_rows
from cdejax.config import ClustersConfig
from cdejax.runtime.mesh import DATA, local_mesh, replicated_sharding, row_sharding
from cdejax.runtime.varying import vary_like

NAME = "jax"
POINTS, CENTROIDS = 8192, 4096
"""Shape of a tile of scores: 128 MiB of float32."""
_SPLIT_SEED = 1234
_EPS = 1 / 1024
"""Relative perturbation that separates the halves of a split cluster."""


Tiles = tuple[Float[Array, "tiles points dim"], Int[Array, "tiles"]]
"""Points, device after device, and each tile's number of points without padding."""
Columns = tuple[Float[Array, "k dim"], Int[Array, ""]]
"""Centroids, and their number without padding."""


def train(
    points: Float[np.ndarray, "points dim"],
    k: int,
    settings: ClustersConfig,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> Float[np.ndarray, "k dim"]:
    """Unit centroids of spherical k-means on all of `points`.

    The best of `nredo` restarts of `niter` iterations by total inner product. A restart
    ends early once an iteration does not change the objective. The last bits of sums
    depend on the number of devices and, on a GPU, on the order of its threads.

    Args:
      points: unit vectors.
      k: number of centroids, at most the number of points.
      settings: `niter` and `nredo` are used.
      seed: seed of the initial centroids.
      advance: called after every iteration.
    """
    if len(points) == k:
        return points
    mesh = local_mesh()
    tiles = _to_tiles(points, mesh)
    best, best_objective = points[:k], -np.inf
    for redo in range(settings.nredo):
        first = first_rows(len(points), k, seed + 1 + redo * 15486557)
        centroids, previous = unit_rows(points[first]), -np.inf
        for _ in range(settings.niter):
            centroids, objective = _improved(mesh, tiles, centroids, len(points))
            advance()
            if objective == previous:
                break
            previous = objective
        if previous > best_objective:
            best, best_objective = centroids, previous
    return best


def nearest(
    centroids: Float[np.ndarray, "k dim"],
) -> Callable[[Float[np.ndarray, "points dim"]], Int[np.ndarray, "points"]]:
    """A function that maps points to the centroids with the largest inner product."""
    mesh = local_mesh()
    held = _to_columns(centroids, mesh)

    def find(points: Float[np.ndarray, "points dim"]) -> Int[np.ndarray, "points"]:
        tiles, _ = _to_tiles(points, mesh)
        ids = np.asarray(_assign(mesh, tiles, *held))
        return ids.reshape(-1)[: len(points)]

    return find


def _improved(
    mesh: Mesh, tiles: Tiles, centroids: Float[np.ndarray, "k dim"], points: int
) -> tuple[Float[np.ndarray, "k dim"], float]:
    """Centroids after one more iteration, and the objective before it."""
    found = _iterate(mesh, tiles, *_to_columns(centroids, mesh))
    new, counts, scores = jax.device_get(found)
    new, counts = new[: len(centroids)], counts[: len(centroids)]
    if not counts.all():
        new = unit_rows(split_empty(new, counts, points))
    return new, float(scores.sum(dtype=np.float64))


def first_rows(rows: int, k: int, seed: int) -> Int[np.ndarray, "k"]:
    """`k` distinct rows as FAISS draws them: the first `k` of an MT19937 shuffle."""
    raw = np.random.RandomState(seed % 2**32).randint(0, 2**32, k, np.uint32)
    moved: dict[int, int] = {}
    chosen = np.empty(k, np.int64)
    for i, value in enumerate(raw.tolist()):
        other = int(i + value % (rows - i))
        chosen[i] = moved.get(other, other)
        moved[other] = moved.get(i, i)
    return chosen


def split_empty(
    centroids: Float[np.ndarray, "k dim"], counts: Int[np.ndarray, "k"], points: int
) -> Float[np.ndarray, "k dim"]:
    """Splits a large cluster for every empty one, as FAISS does.

    Larger clusters are drawn with higher probability. The values of the two halves are
    scaled by 1 ± 1/1024, with alternating signs.
    """
    centroids, counts = centroids.copy(), counts.astype(np.float32)
    k, dim = centroids.shape
    up = np.where(np.arange(dim) % 2 == 0, 1 + _EPS, 1 - _EPS).astype(np.float32)
    random = np.random.RandomState(_SPLIT_SEED)
    draws = np.zeros(0, np.float32)
    for empty in np.flatnonzero(counts == 0):
        share = (counts - 1) / np.float32(points - k)
        hits = np.zeros(0, int)
        while not len(hits):  # one pass over all clusters
            more = random.randint(0, 2**32, k, np.uint32) / np.float32(2**32 - 1)
            draws = np.concatenate([draws, more.astype(np.float32)])
            hits = np.flatnonzero(draws[:k] < share)
            used = hits[0] + 1 if len(hits) else k
            draws = draws[used:]
        large = hits[0]
        centroids[empty] = centroids[large] * up
        centroids[large] *= 2 - up
        counts[empty] = counts[large] / 2
        counts[large] -= counts[empty]
    return centroids


def _to_tiles(points: Float[np.ndarray, "points dim"], mesh: Mesh) -> Tiles:
    """Pads points to tiles, equally many per device; few shapes for any domain size."""
    rows, dim = points.shape
    size = min(POINTS, _power(-(-rows // mesh.size)))
    tiles = -(-rows // (size * mesh.size))
    step = max(_power(tiles) // 16, 1)
    tiles = -(-tiles // step) * step * mesh.size
    padded = np.zeros((tiles * size, dim), np.float32)
    padded[:rows] = points
    real = np.clip(rows - size * np.arange(tiles), 0, size).astype(np.int32)
    return jax.device_put((padded.reshape(tiles, size, dim), real), row_sharding(mesh))


def _to_columns(centroids: Float[np.ndarray, "k dim"], mesh: Mesh) -> Columns:
    """Pads centroids to one of a few sizes and replicates them on every device."""
    k, dim = centroids.shape
    size = _power(k) if k < CENTROIDS else -(-k // CENTROIDS) * CENTROIDS
    padded = np.zeros((size, dim), np.float32)
    padded[:k] = centroids
    return jax.device_put((padded, np.int32(k)), replicated_sharding(mesh))


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


@functools.partial(jax.jit, static_argnums=0)
def _iterate(
    mesh: Mesh, tiles: Tiles, columns: Float[Array, "k dim"], k: Int[Array, ""]
) -> tuple[Float[Array, "k dim"], Int[Array, "k"], Float[Array, "tiles"]]:
    """Runs one iteration.

    Returns:
      New centroids (zeros for an empty cluster), the number of points of each, and for
      each tile the sum of the inner products with the nearest old centroids.
    """
    size, dim = columns.shape

    def local(tiles: Tiles, columns: Array, k: Array) -> tuple[Array, Array, Array]:
        def add(total: tuple[Array, Array], tile: Tiles):
            points, real = tile
            ids, scores = _best(points, columns, k)
            inside = jnp.arange(len(points)) < real
            ids = jnp.where(inside, ids, size)  # beyond the last segment: dropped
            sums = jax.ops.segment_sum(points, ids, size)
            counts = jax.ops.segment_sum(inside.astype(jnp.int32), ids, size)
            scores = jnp.sum(jnp.where(inside, scores, 0))
            return (total[0] + sums, total[1] + counts), scores

        none = jnp.zeros((size, dim)), jnp.zeros(size, jnp.int32)
        total, scores = jax.lax.scan(add, vary_like(none, tiles), tiles)
        sums, counts = jax.lax.psum(total, DATA)
        return _unit(sums), counts, scores

    part, whole = PartitionSpec(DATA), PartitionSpec()
    specs, out = (part, whole, whole), (whole, whole, part)
    sharded = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out)
    return sharded(tiles, columns, k)


@functools.partial(jax.jit, static_argnums=0)
def _assign(
    mesh: Mesh,
    points: Float[Array, "tiles points dim"],
    columns: Float[Array, "k dim"],
    k: Int[Array, ""],
) -> Int[Array, "tiles points"]:
    def local(points: Array, columns: Array, k: Array) -> Array:
        return jax.lax.map(lambda tile: _best(tile, columns, k)[0], points)

    part, whole = PartitionSpec(DATA), PartitionSpec()
    specs = (part, whole, whole)
    sharded = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=part)
    return sharded(points, columns, k)


def _best(
    points: Float[Array, "points dim"],
    columns: Float[Array, "k dim"],
    k: Int[Array, ""],
) -> tuple[Int[Array, "points"], Float[Array, "points"]]:
    """The first of `k` columns with the largest inner product, and that product."""
    width = min(CENTROIDS, len(columns))
    blocks = columns.reshape(-1, width, columns.shape[1])

    def better(best: tuple[Array, Array], block: tuple[Array, Array]):
        first, centroids = block
        scores = jnp.matmul(points, centroids.T, precision=jax.lax.Precision.HIGHEST)
        scores = jnp.where(first + jnp.arange(width) < k, scores, -jnp.inf)
        here = first + jnp.argmax(scores, axis=1).astype(jnp.int32)
        score = jnp.max(scores, axis=1)
        ids = jnp.where(score > best[1], here, best[0])
        return (ids, jnp.maximum(score, best[1])), None

    rows = len(points)
    none = jnp.zeros(rows, jnp.int32), jnp.full(rows, -jnp.inf)
    firsts = width * jnp.arange(len(blocks), dtype=jnp.int32)
    best, _ = jax.lax.scan(better, vary_like(none, points), (firsts, blocks))
    return best


def _unit(x: Float[Array, "rows dim"]) -> Float[Array, "rows dim"]:
    """Rows scaled to norm 1; rows of zeros stay zero."""
    norms = jnp.linalg.norm(x, axis=1, keepdims=True)
    return x / jnp.where(norms == 0, 1, norms)
