"""Reductions over the documents of a batch, in blocks of columns.

Only one block of columns of the score matrix exists at a time, in the backward pass as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cdejax.models.modules import unit
from cdejax.runtime.varying import vary_like
from cdejax.training.objectives.base import (
    CONTRAST,
    Objective,
    QueryTerms,
    Totals,
    contrast_values,
)
from cdejax.training.objectives.reductions import Axes, Reduction
from cdejax.training.relation import DocumentColumns, QueryRows, Relation
from cdejax.typing import AnyArray

T = TypeVar("T")
BLOCK = 1024
"""Default number of columns of the score matrix per block."""

States = dict[str, Any]
"""States of reductions (see `Reduction`) by name."""


def normalize(vectors: Float[AnyArray, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """Divides rows by their L2 norm, in float32 (a zero row stays zero)."""
    return unit(jnp.asarray(vectors, jnp.float32))


class Documents(NamedTuple):
    """Some documents of the batch, with their reductions over queries so far."""

    vectors: Float[Array, "documents dim"]
    """Normalised embeddings."""
    columns: DocumentColumns
    states: States
    """Reductions over queries; empty unless the objective is `by_document`."""


def batch_terms(
    objective: Objective,
    relation: Relation,
    query_vectors: Float[AnyArray, "queries dim"],
    document_vectors: Float[AnyArray, "documents dim"],
    queries: QueryRows,
    documents: DocumentColumns,
    *,
    block: int = BLOCK,
    axes: Axes = (),
) -> QueryTerms:
    """Computes loss and metrics of each query over all documents of the batch.

    Args:
      objective: the objective.
      relation: which documents are positives, negatives, or ignored.
      query_vectors: embeddings of the queries, not normalised.
      document_vectors: embeddings of the documents, not normalised.
      queries: ids and surrogate vectors of the queries.
      documents: ids and surrogate vectors of the documents.
      block: number of columns of the score matrix per block.
      axes: mesh axes over which queries and documents are split, inside `shard_map`;
        documents are gathered from all devices. Without axes, this device has all.
    """
    if axes:
        gather = lambda x: jax.lax.all_gather(x, axes, tiled=True)  # noqa: E731
        document_vectors, documents = jax.tree.map(
            gather, (document_vectors, documents)
        )
    query_vectors, document_vectors = map(normalize, (query_vectors, document_vectors))
    contrast = Contrast(objective, relation, block)
    given = contrast.documents(document_vectors, documents)
    states = contrast.empty(query_vectors)
    states, by_document = contrast.add(states, query_vectors, queries, given)
    if axes:
        by_document = {name: state.over(axes) for name, state in by_document.items()}
    columns = totals_of(by_document)
    return finish(objective, totals_of(states), columns, queries, documents)


@dataclass(frozen=True)
class Contrast:
    """An objective and a relation, reduced block by block."""

    objective: Objective
    relation: Relation
    block: int

    @property
    def reductions(self) -> Mapping[str, type[Reduction]]:
        """Reductions over documents: the objective's own and those of the metrics."""
        return {**self.objective.reductions, **CONTRAST}

    def empty(self, query_vectors: Float[Array, "queries dim"]) -> States:
        """Initial states of the queries, before any document."""
        return _empty(self.reductions, query_vectors)

    def documents(
        self, vectors: Float[Array, "documents dim"], columns: DocumentColumns
    ) -> Documents:
        """Documents with initial states, before any query."""
        kinds = self.objective.reductions if self.objective.by_document else {}
        return Documents(vectors, columns, _empty(kinds, vectors))

    def add(
        self,
        states: States,
        query_vectors: Float[Array, "queries dim"],
        queries: QueryRows,
        documents: Documents,
    ) -> tuple[States, States]:
        """Adds documents to the queries' states, and the queries to the documents'.

        Returns:
          The new states of the queries and the new states of the documents.
        """

        @jax.checkpoint
        def add(states: States, block: Documents) -> tuple[States, States]:
            cosine, cells = self.cells(query_vectors, queries, block)
            values = self.objective.values(cosine, cells)
            values = {**values, **contrast_values(cosine, cells)}
            columns: Any = {}
            if self.objective.by_document:
                columns = self.objective.values(cosine.T, cells.transposed())
            return _add(states, values), _add(block.states, columns)

        blocks = in_blocks(documents, self.block)
        states, by_document = jax.lax.scan(add, states, blocks)
        count = len(documents.vectors)
        flat = jax.tree.map(lambda x: x.reshape(-1)[:count], by_document)
        return states, flat

    def cells(
        self,
        query_vectors: Float[Array, "queries dim"],
        queries: QueryRows,
        block: Documents,
    ) -> tuple[Float[Array, "queries block"], Any]:
        """Computes cosine similarities of queries and documents, and their relation."""
        cells = self.relation.cells(
            queries, block.columns, surrogate=self.objective.needs_surrogate
        )
        cosine = jnp.einsum(
            "qh,dh->qd",
            query_vectors,
            block.vectors,
            precision=jax.lax.Precision.HIGHEST,
        )
        return cosine, cells


def finish(
    objective: Objective,
    totals: Totals,
    columns: Totals,
    queries: QueryRows,
    documents: DocumentColumns,
) -> QueryTerms:
    """Loss and metrics from completed reductions over documents and over queries."""
    if not objective.by_document:
        return objective.terms(totals, {})
    at = own_positive(queries, documents)
    return objective.terms(totals, {name: x[at] for name, x in columns.items()})


def own_positive(
    queries: QueryRows, documents: DocumentColumns
) -> Int[Array, "queries"]:
    """Index of each query's own positive among all documents of the batch."""
    count = documents.row.shape[0]
    # A table by row number: there are at least as many documents as rows.
    row = jnp.where(documents.positive & documents.real, documents.row, count)
    table = jnp.zeros(count, jnp.int32).at[row].set(jnp.arange(count), mode="drop")
    return table[queries.row]


def totals_of(states: States) -> dict[str, Float[Array, "queries"]]:
    """The results of the reductions, given their states."""
    return {name: state.value() for name, state in states.items()}


def _empty(
    kinds: Mapping[str, type[Reduction]], vectors: Float[Array, "rows dim"]
) -> States:
    """Initial states, made from the vectors so that they vary over the same axes."""
    zero = vary_like(jnp.zeros(len(vectors), vectors.dtype), vectors)
    return {name: kind.empty(zero) for name, kind in kinds.items()}


def _add(states: States, values: Mapping[str, Array]) -> States:
    return {name: state.add(values[name]) for name, state in states.items()}


def in_blocks(tree: T, block: int) -> T:
    """Splits rows into blocks; the last is padded with zeros (`real` is False)."""
    count = jax.tree.leaves(tree)[0].shape[0]
    block = min(block, count)
    padding = -count % block

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(x.shape[0] // block, block, *x.shape[1:])

    return jax.tree.map(cut, tree)
