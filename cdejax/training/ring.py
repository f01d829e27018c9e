"""InfoNCE over the documents of all devices, which pass by in turn.

No device ever holds all documents of the global batch: each hands those that it has on
to the next one, and sums up its queries' scores with those that come. The backward pass
goes round once more; the gradients of documents travel with them until they are home.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cdejax.training.loss import (
    BLOCK,
    Contrast,
    QueryTerms,
    Scores,
    Sums,
    in_blocks,
    logits_of,
    normalize,
    start,
)
from cdejax.training.relation import DocumentColumns, Duplicates, QueryRows

Axes = tuple[str, ...]


def ring_info_nce(
    query_vectors: Float[Array, "queries dim"],
    document_vectors: Float[Array, "documents dim"],
    queries: QueryRows,
    documents: DocumentColumns,
    *,
    axes: Axes,
    temperature: float,
    duplicates: Duplicates = "ignore",
    margin: float | None = None,
    block: int = BLOCK,
) -> QueryTerms:
    """`info_nce` of a device's queries over the documents of all; inside `shard_map`.

    Args:
      query_vectors: embeddings of this device's queries, not yet normalised.
      document_vectors: embeddings of this device's documents.
      queries: ids and surrogate vectors of the queries.
      documents: the same for the documents.
      axes: mesh axes over which the documents are split.
      temperature, duplicates, margin, block: as in `info_nce`.
    """
    how = Contrast(temperature, duplicates, margin, block)
    vectors = normalize(query_vectors), normalize(document_vectors)
    result: Any = _round(axes, how, *vectors, queries, documents)
    loss, sums = result
    return sums.terms()._replace(loss=loss)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _round(
    axes: Axes,
    how: Contrast,
    query_vectors: Float[Array, "queries dim"],
    document_vectors: Float[Array, "documents dim"],
    queries: QueryRows,
    documents: DocumentColumns,
) -> tuple[Float[Array, "queries"], Sums]:
    """Losses and sums over all documents; only the losses are differentiated."""
    scores = Scores(queries, how)

    def turn(_: int, carry: tuple[Sums, Any]) -> tuple[Sums, Any]:
        sums, passing = carry
        return scores.add(sums, query_vectors, *passing), _pass_on(passing, axes)

    count = jax.lax.axis_size(axes)
    first: Any = (start(query_vectors), (document_vectors, documents))
    sums, passing = jax.lax.fori_loop(0, count - 1, turn, first)
    sums = scores.add(sums, query_vectors, *passing)
    return sums.terms().loss, sums


def _forward(
    axes: Axes, how: Contrast, *arguments: Any
) -> tuple[tuple[Float[Array, "queries"], Sums], Any]:
    result: Any = _round(axes, how, *arguments)
    loss, sums = result
    return (loss, sums), (arguments, sums.log_partition(), sums.positives)


def _backward(
    axes: Axes, how: Contrast, saved: Any, cotangents: tuple[Array, Any]
) -> tuple[Array, Array, None, None]:
    (query_vectors, document_vectors, queries, documents), partition, positives = saved
    scores, weight = Scores(queries, how), cotangents[0]

    def share(
        query_vectors: Array, vectors: Array, columns: DocumentColumns
    ) -> Float[Array, ""]:
        """A number whose gradient is that of the weighted losses, for one block."""
        cosine, cells = scores.cells(query_vectors, vectors, columns)
        logits = logits_of(cosine, cells, how.temperature)
        softmax = jnp.exp(logits - partition[:, None]).sum(-1)
        positive = jnp.where(cells.positive, logits, 0.0).sum(-1) / positives
        return (weight * (softmax - positive)).sum()

    def turn(_: int, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        to_queries, (vectors, columns, to_vectors) = carry
        blocks = in_blocks((vectors, columns), how.block)

        def add(total: Array, column: tuple) -> tuple[Array, Array]:
            gradients = jax.grad(share, argnums=(0, 1))(query_vectors, *column)
            return total + gradients[0], gradients[1]

        to_queries, parts = jax.lax.scan(add, to_queries, blocks)
        to_vectors += parts.reshape(-1, parts.shape[-1])[: len(vectors)]
        return to_queries, _pass_on((vectors, columns, to_vectors), axes)

    zeros = (query_vectors * 0, document_vectors * 0)  # vary over the same devices
    first: Any = (zeros[0], (document_vectors, documents, zeros[1]))
    to_queries, passing = jax.lax.fori_loop(0, jax.lax.axis_size(axes), turn, first)
    return to_queries, passing[2], None, None


_round.defvjp(_forward, _backward)


def _pass_on(tree: Any, axes: Axes) -> Any:
    count = jax.lax.axis_size(axes)
    pairs = [(i, (i + 1) % count) for i in range(count)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axes, pairs), tree)
