"""InfoNCE over the global batch, computed in blocks of columns."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cdejax.training.relation import (
    Cells,
    DocumentColumns,
    Duplicates,
    QueryRows,
    relate,
)
from cdejax.typing import AnyArray

_NEVER = -1e30
"""Logit of a cell that is out of the denominator: finite, so no gradient is NaN."""


class QueryTerms(NamedTuple):
    """What the loss and its metrics are made of, one number per query."""

    loss: Float[Array, "queries"]
    """Minus the mean over the query's positives of the log-softmax."""
    correct: Bool[Array, "queries"]
    """The own positive scores above every negative."""
    hardest: Float[Array, "queries"]
    """Cosine of the hardest negative (-1 where there is none)."""
    masked: Int[Array, "queries"]
    """Cells left out of the denominator."""


class _Sums(NamedTuple):
    peak: Float[Array, "queries"]
    total: Float[Array, "queries"]
    positive: Float[Array, "queries"]
    positives: Float[Array, "queries"]
    own: Float[Array, "queries"]
    hardest: Float[Array, "queries"]
    masked: Int[Array, "queries"]


def normalize(vectors: Float[AnyArray, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """Rows divided by their L2 norm, in float32 (a zero row stays zero)."""
    vectors = jnp.asarray(vectors, jnp.float32)
    square = jnp.sum(vectors * vectors, -1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def info_nce(
    query_vectors: Float[AnyArray, "queries dim"],
    document_vectors: Float[AnyArray, "documents dim"],
    queries: QueryRows,
    documents: DocumentColumns,
    *,
    temperature: float,
    duplicates: Duplicates = "ignore",
    margin: float | None = None,
    block: int = 4096,
) -> QueryTerms:
    """Terms of the InfoNCE loss of each query; the loss is their mean over the batch.

    loss(q) = - mean over positives p of log( exp(s_qp) / sum over d of exp(s_qd) ),
    with s = cosine / temperature and d over all documents that are not ignored (see
    `relate`). Logits are float32 at full precision. Only `block` columns of the score
    matrix exist at a time, in the backward pass too.

    Args:
      query_vectors: embeddings of some or all queries, not yet normalised.
      document_vectors: embeddings of all documents of the global batch.
      queries: ids and surrogate vectors of the queries.
      documents: the same for the documents.
      temperature: divides the cosines.
      duplicates: what further positives are, see `relate`.
      margin: of the false-negative mask, see `relate`; None for no mask.
      block: columns held at once.
    """
    count = document_vectors.shape[0]
    block = min(block, count)
    padding = -count % block
    query_vectors = normalize(query_vectors)
    columns = (normalize(document_vectors), documents)
    columns = jax.tree.map(lambda x: _blocks(x, block, padding), columns)

    @jax.checkpoint
    def add(sums: _Sums, column: tuple) -> tuple[_Sums, None]:
        vectors, ids = column
        cells = relate(queries, ids, duplicates=duplicates, margin=margin)
        cosine = jnp.einsum(
            "qh,dh->qd", query_vectors, vectors, precision=jax.lax.Precision.HIGHEST
        )
        return _add_block(sums, cosine, cells, ids.real, temperature), None

    sums, _ = jax.lax.scan(add, _start(query_vectors), columns)
    log_partition = sums.peak + jnp.log(sums.total)
    loss = log_partition - sums.positive / sums.positives
    hardest = jax.lax.stop_gradient(sums.hardest)
    return QueryTerms(loss, sums.own > hardest, hardest, sums.masked)


def _add_block(
    sums: _Sums,
    cosine: Float[Array, "queries block"],
    cells: Cells,
    real: Bool[Array, "block"],
    temperature: float,
) -> _Sums:
    """Adds a block of columns to the running log-sum-exp and counts."""
    outside = cells.ignored | ~real
    logits = jnp.where(outside, _NEVER, cosine / temperature)
    peak = jnp.maximum(sums.peak, jax.lax.stop_gradient(logits.max(-1)))
    total = sums.total * jnp.exp(sums.peak - peak)
    total += jnp.exp(logits - peak[:, None]).sum(-1)
    negative = jnp.where(outside | cells.positive, -1.0, cosine)
    return _Sums(
        peak,
        total,
        sums.positive + jnp.where(cells.positive, logits, 0.0).sum(-1),
        sums.positives + cells.positive.sum(-1),
        sums.own + jnp.where(cells.own, cosine, 0.0).sum(-1),
        jnp.maximum(sums.hardest, negative.max(-1)),
        sums.masked + cells.ignored.sum(-1),
    )


def _start(query_vectors: Float[Array, "queries dim"]) -> _Sums:
    """Empty sums, made from the vectors so that they vary over the same devices."""
    zero = jax.lax.stop_gradient(query_vectors[:, 0]) * 0
    return _Sums(
        zero + _NEVER, zero, zero, zero, zero, zero - 1, zero.astype(jnp.int32)
    )


def _blocks(x: Array, block: int, padding: int) -> Array:
    """Cuts rows into blocks, the last one filled up with zeros (columns not real)."""
    x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(x.shape[0] // block, block, *x.shape[1:])
