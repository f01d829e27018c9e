"""Reductions over the documents of all devices, which travel around a ring.

No device ever holds all documents of the global batch: each passes its documents to the
next device and reduces its queries' scores against those that it receives. The backward
pass goes around the ring once more; the documents' gradients travel with them until
they return to their own device.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cdejax.runtime.varying import vary_like
from cdejax.training.objectives.base import Objective, QueryTerms
from cdejax.training.objectives.blocks import (
    BLOCK,
    Contrast,
    Documents,
    States,
    finish,
    in_blocks,
    normalize,
    totals_of,
)
from cdejax.training.objectives.reductions import Axes
from cdejax.training.relation import DocumentColumns, QueryRows, Relation

Both = tuple[dict[str, Array], dict[str, Array]]
"""Reductions by name, for this device's queries and for its documents."""


def ring_terms(
    objective: Objective,
    relation: Relation,
    query_vectors: Float[Array, "queries dim"],
    document_vectors: Float[Array, "documents dim"],
    queries: QueryRows,
    documents: DocumentColumns,
    *,
    axes: Axes,
    block: int = BLOCK,
) -> QueryTerms:
    """Computes the same as `batch_terms` without gathering the documents.

    It must be called inside `shard_map`.

    Args:
      objective: the objective.
      relation: which documents are positives, negatives, or ignored.
      query_vectors: embeddings of this device's queries, not normalised.
      document_vectors: embeddings of this device's documents, not normalised.
      queries: ids and surrogate vectors of the queries.
      documents: ids and surrogate vectors of the documents.
      axes: mesh axes over which queries and documents are split.
      block: number of columns of the score matrix per block.
    """
    contrast = Contrast(objective, relation, block)
    vectors = normalize(query_vectors), normalize(document_vectors)
    result: Any = _totals(axes, contrast, *vectors, queries, documents)
    totals, columns = result
    if objective.by_document:
        gather = lambda x: jax.lax.all_gather(x, axes, tiled=True)  # noqa: E731
        columns, documents = jax.tree.map(gather, (columns, documents))
    return finish(objective, totals, columns, queries, documents)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _totals(axes: Axes, contrast: Contrast, *arguments: Any) -> Both:
    """Reductions over all documents and over all queries of the global batch."""
    states, met = _round(axes, contrast, *arguments)
    return totals_of(states), totals_of(met)


def _round(
    axes: Axes,
    contrast: Contrast,
    query_vectors: Float[Array, "queries dim"],
    document_vectors: Float[Array, "documents dim"],
    queries: QueryRows,
    documents: DocumentColumns,
) -> tuple[States, States]:
    """States of the queries and of the documents after one trip around the ring."""

    def meet(states: Any, passing: Documents) -> tuple[Any, Documents]:
        states, met = contrast.add(states, query_vectors, queries, passing)
        return states, passing._replace(states=met)

    def turn(_: int, carry: tuple[Any, Documents]) -> tuple[Any, Documents]:
        states, passing = meet(*carry)
        return states, _pass_on(passing, axes)

    first = (
        contrast.empty(query_vectors),
        contrast.documents(document_vectors, documents),
    )
    # With n devices, documents are reduced n times and passed on n - 1 times in
    # between. Each document is then one device short of its own, which needs only its
    # states, not its vector.
    count = jax.lax.axis_size(axes)
    states, passing = meet(*jax.lax.fori_loop(0, count - 1, turn, first))
    return states, _pass_on(passing.states, axes)


def _forward(axes: Axes, contrast: Contrast, *arguments: Any) -> tuple[Both, Any]:
    states = _round(axes, contrast, *arguments)
    totals = totals_of(states[0]), totals_of(states[1])
    return totals, (arguments, states)


def _backward(
    axes: Axes, contrast: Contrast, saved: Any, cotangents: Both
) -> tuple[Array, Array, None, None]:
    # Only the completed reductions of the forward pass are saved: logits are recomputed
    # block by block. Autodiff through the forward loop would save every block of every
    # turn.
    (query_vectors, document_vectors, queries, documents), states = saved
    objective = contrast.objective

    def share(
        query_vectors: Array, vectors: Array, columns: DocumentColumns, met: Any
    ) -> Float[Array, ""]:
        """A number whose gradient is that of the loss, for one block of documents."""
        block = Documents(vectors, columns, {})
        cosine, cells = contrast.cells(query_vectors, queries, block)
        values = objective.values(cosine, cells)
        total = weighted(values, states[0], cotangents[0])
        if objective.by_document:
            values = objective.values(cosine.T, cells.transposed())
            total += weighted(values, *met)
        return total

    def weighted(values: Any, states: States, cotangents: Any) -> Float[Array, ""]:
        parts = [
            (cotangents[name] * states[name].contribution(values[name])).sum()
            for name in objective.reductions
        ]
        return functools.reduce(jnp.add, parts)

    def turn(_: int, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        to_queries, (passing, to_vectors) = carry
        blocks = in_blocks(passing, contrast.block)

        def add(total: Array, block: tuple) -> tuple[Array, Array]:
            gradients = jax.grad(share, argnums=(0, 1))(query_vectors, *block)
            return total + gradients[0], gradients[1]

        to_queries, parts = jax.lax.scan(add, to_queries, blocks)
        to_vectors += parts.reshape(-1, parts.shape[-1])[: len(to_vectors)]
        return to_queries, _pass_on((passing, to_vectors), axes)

    # A document's gradient is a sum over the queries of all devices. It travels with
    # the document: each device adds its part, and after n turns it is complete.
    vectors = query_vectors, document_vectors
    zeros = vary_like(jax.tree.map(jnp.zeros_like, vectors), vectors)
    passing = (document_vectors, documents, (states[1], cotangents[1]))
    first: Any = (zeros[0], (passing, zeros[1]))
    to_queries, passing = jax.lax.fori_loop(0, jax.lax.axis_size(axes), turn, first)
    return to_queries, passing[1], None, None


_totals.defvjp(_forward, _backward)


def _pass_on(tree: Any, axes: Axes) -> Any:
    count = jax.lax.axis_size(axes)
    pairs = [(i, (i + 1) % count) for i in range(count)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axes, pairs), tree)
