"""InfoNCE over the global batch, computed in blocks of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

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

T = TypeVar("T")
BLOCK = 1024
"""Columns of the score matrix that exist at a time, if nothing else is said."""
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


class Sums(NamedTuple):
    """What has been summed up over the documents seen so far, by query."""

    peak: Float[Array, "queries"]
    total: Float[Array, "queries"]
    positive: Float[Array, "queries"]
    positives: Float[Array, "queries"]
    own: Float[Array, "queries"]
    hardest: Float[Array, "queries"]
    masked: Int[Array, "queries"]

    def terms(self) -> QueryTerms:
        """The loss and its metrics, once all documents have been seen."""
        loss = self.log_partition() - self.positive / self.positives
        hardest = jax.lax.stop_gradient(self.hardest)
        return QueryTerms(loss, self.own > hardest, hardest, self.masked)

    def log_partition(self) -> Float[Array, "queries"]:
        """Logarithm of the denominator."""
        return self.peak + jnp.log(self.total)


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
    block: int = BLOCK,
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
    query_vectors, document_vectors = map(normalize, (query_vectors, document_vectors))
    scores = Scores(queries, Contrast(temperature, duplicates, margin, block))
    sums = scores.add(start(query_vectors), query_vectors, document_vectors, documents)
    return sums.terms()


@dataclass(frozen=True)
class Contrast:
    """How queries are scored against documents; see `info_nce`."""

    temperature: float
    duplicates: Duplicates
    margin: float | None
    block: int


@dataclass(frozen=True)
class Scores:
    """Scores of some queries, summed up over documents block by block."""

    queries: QueryRows
    how: Contrast

    def add(
        self,
        sums: Sums,
        query_vectors: Float[Array, "queries dim"],
        document_vectors: Float[Array, "documents dim"],
        documents: DocumentColumns,
    ) -> Sums:
        """Adds documents to the sums; vectors are normalised."""

        @jax.checkpoint
        def add(sums: Sums, column: tuple) -> tuple[Sums, None]:
            cosine, cells = self.cells(query_vectors, *column)
            return _add_block(sums, cosine, cells, self.how.temperature), None

        blocks = in_blocks((document_vectors, documents), self.how.block)
        return jax.lax.scan(add, sums, blocks)[0]

    def cells(
        self,
        query_vectors: Float[Array, "queries dim"],
        document_vectors: Float[Array, "block dim"],
        documents: DocumentColumns,
    ) -> tuple[Float[Array, "queries block"], Cells]:
        """Cosines of the queries with a block of documents, and what they are."""
        duplicates, margin = self.how.duplicates, self.how.margin
        cells = relate(self.queries, documents, duplicates=duplicates, margin=margin)
        cosine = jnp.einsum(
            "qh,dh->qd",
            query_vectors,
            document_vectors,
            precision=jax.lax.Precision.HIGHEST,
        )
        return cosine, cells


def logits_of(
    cosine: Float[Array, "queries block"], cells: Cells, temperature: float
) -> Float[Array, "queries block"]:
    """Cosines by temperature, and next to nothing where a cell does not count."""
    return jnp.where(cells.outside, _NEVER, cosine / temperature)


def _add_block(
    sums: Sums,
    cosine: Float[Array, "queries block"],
    cells: Cells,
    temperature: float,
) -> Sums:
    """Adds a block of columns to the running log-sum-exp and counts."""
    logits = logits_of(cosine, cells, temperature)
    peak = jnp.maximum(sums.peak, jax.lax.stop_gradient(logits.max(-1)))
    total = sums.total * jnp.exp(sums.peak - peak)
    total += jnp.exp(logits - peak[:, None]).sum(-1)
    negative = jnp.where(cells.outside | cells.positive, -1.0, cosine)
    return Sums(
        peak,
        total,
        sums.positive + jnp.where(cells.positive, logits, 0.0).sum(-1),
        sums.positives + cells.positive.sum(-1),
        sums.own + jnp.where(cells.own, cosine, 0.0).sum(-1),
        jnp.maximum(sums.hardest, negative.max(-1)),
        sums.masked + cells.ignored.sum(-1),
    )


def start(query_vectors: Float[Array, "queries dim"]) -> Sums:
    """Empty sums, made from the vectors so that they vary over the same devices."""
    zero = jax.lax.stop_gradient(query_vectors[:, 0]) * 0
    return Sums(zero + _NEVER, zero, zero, zero, zero, zero - 1, zero.astype(jnp.int32))


def in_blocks(tree: T, block: int) -> T:
    """Cuts rows into blocks, the last one filled up with zeros (columns not real)."""
    count = jax.tree.leaves(tree)[0].shape[0]
    block = min(block, count)
    padding = -count % block

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(x.shape[0] // block, block, *x.shape[1:])

    return jax.tree.map(cut, tree)
