"""Exact nearest-neighbour search on the device, in blocks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from cdejax.counts import check_count

_LEAST_BLOCK, _LEAST_ROWS = 1024, 64


def search(
    queries: Shaped[np.ndarray, "queries dim"],
    documents: Shaped[np.ndarray, "documents dim"],
    k: int,
    *,
    query_block: int = 1024,
    document_block: int = 16384,
) -> tuple[Float[np.ndarray, "queries k"], Int[np.ndarray, "queries k"]]:
    """The k documents with the highest dot product for every query, best first.

    Scores are float32 products at full precision (`Precision.HIGHEST`, whatever the
    device's default); ties go to the lower document index. Only one block of scores
    exists at a time; documents may be a memory map.

    Args:
      queries: query vectors; normalise them for cosine similarity.
      documents: document vectors of the same dimension.
      k: results per query; if there are fewer documents, all are returned.
      query_block: number of queries scored at once.
      document_block: number of documents scored at once.

    Raises:
      ValueError: mismatched shapes, k < 1, no documents, or a non-finite vector.
    """
    _check(queries, documents, k)
    step = min(document_block, _power_of_two(len(documents), _LEAST_BLOCK))
    rows = min(query_block, _power_of_two(len(queries), _LEAST_ROWS))
    parts = [
        jnp.asarray(_block(queries, start, rows))
        for start in range(0, len(queries), rows)
    ]
    found = min(k, len(documents))
    best = [_nothing(rows, found) for _ in parts]
    for start in range(0, len(documents), step):
        block = jnp.asarray(_block(documents, start, step))
        count = min(step, len(documents) - start)
        best = [
            _merge(*kept, part, block, start, count)
            for kept, part in zip(best, parts, strict=True)
        ]
    if not parts:
        return np.zeros((0, found), np.float32), np.zeros((0, found), np.int32)
    scores, ids = (
        np.concatenate([np.asarray(pair[i]) for pair in best])[: len(queries), :found]
        for i in (0, 1)
    )
    return scores, ids


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _merge(
    scores: Float[Array, "queries k"],
    ids: Int[Array, "queries k"],
    queries: Float[Array, "queries dim"],
    documents: Float[Array, "documents dim"],
    start: int,
    count: int,
) -> tuple[Float[Array, "queries k"], Int[Array, "queries k"]]:
    """The top k among those found so far and one more block of documents.

    `top_k` breaks ties by the lower position, and earlier blocks come first.
    """
    new = jnp.matmul(queries, documents.T, precision=jax.lax.Precision.HIGHEST)
    new = jnp.where(new == 0, 0.0, new)  # -0.0 would sort below 0.0
    columns = jnp.arange(new.shape[1])
    new = jnp.where(columns < count, new, -jnp.inf)
    both = jnp.concatenate([scores, new], axis=1)
    top, where = jax.lax.top_k(both, scores.shape[1])
    new_ids = jnp.broadcast_to(start + columns, new.shape)
    candidates = jnp.concatenate([ids, new_ids.astype(ids.dtype)], axis=1)
    return top, jnp.take_along_axis(candidates, where, axis=1)


def _nothing(
    rows: int, k: int
) -> tuple[Float[Array, "queries k"], Int[Array, "queries k"]]:
    return jnp.full((rows, k), -jnp.inf), jnp.full((rows, k), -1, jnp.int32)


def _block(
    vectors: Shaped[np.ndarray, "rows dim"], start: int, size: int
) -> Float[np.ndarray, "size dim"]:
    """Rows from `start`, padded with zeros, so that all blocks have the same shape."""
    block = np.asarray(vectors[start : start + size], np.float32)
    if not np.isfinite(block).all():
        bad = start + int((~np.isfinite(block)).any(1).argmax())
        raise ValueError(f"vector {bad} is not finite; look at what produced it")
    return np.pad(block, ((0, size - len(block)), (0, 0)))


def _power_of_two(count: int, least: int) -> int:
    """The next power of two, at least `least`: few shapes, so few compilations."""
    return max(1 << max(count - 1, 0).bit_length(), least)


def _check(queries: np.ndarray, documents: np.ndarray, k: int) -> None:
    if queries.ndim != 2 or documents.ndim != 2:
        raise ValueError(
            f"queries {queries.shape} and documents {documents.shape}: "
            "both must be [rows, dim]"
        )
    if queries.shape[1] != documents.shape[1]:
        raise ValueError(
            f"queries have dimension {queries.shape[1]}, documents "
            f"{documents.shape[1]}: encode both with one model"
        )
    check_count("k", k)
    if len(documents) == 0:
        raise ValueError("no documents to search in")
