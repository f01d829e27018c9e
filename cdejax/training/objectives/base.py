"""Base class of objectives: values per cell, reduced to one loss per query.

A cell is a pair of a query and a document. An objective defines which values it
computes for a block of cells and how each value is reduced over documents. `blocks` and
`ring` compute the reductions without the whole score matrix, on one or more devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cdejax.training.objectives.reductions import Maximum, Reduction, Sum
from cdejax.training.relation import Cells

Totals = Mapping[str, Float[Array, "queries"]]
"""Results of the reductions by name, one number per query."""


class QueryTerms(NamedTuple):
    """Loss and metrics of each query."""

    loss: Float[Array, "queries"]
    """Loss of each query; the batch's loss is their mean."""
    correct: Bool[Array, "queries"]
    """Whether the query's own positive scores above every negative."""
    hardest: Float[Array, "queries"]
    """Cosine of the hardest negative (-1 if there is none)."""
    masked: Int[Array, "queries"]
    """Number of documents that are neither positive nor negative."""
    metrics: Mapping[str, Float[Array, "queries"]]
    """The objective's own metrics."""


class Objective(ABC):
    """A contrastive objective; subclasses are frozen dataclasses of its settings.

    The loss of a batch is the mean of `loss` over its queries. The loss of a query
    depends on the reductions over all documents (its row of the score matrix) and, with
    `by_document`, on the reductions over all queries for its own positive (the column
    of that document).
    """

    reductions: ClassVar[Mapping[str, type[Reduction]]]
    """The reduction of each of `values`."""
    by_document: ClassVar[bool] = False
    """Whether `loss` also needs the reductions over queries."""
    needs_surrogate: ClassVar[bool] = False
    """Whether `values` needs `cells.surrogate`, the surrogate model's scores."""
    needs_hard_negatives: ClassVar[bool] = False
    """Whether the objective is defined only with hard negatives."""

    @abstractmethod
    def values(
        self, cosine: Float[Array, "queries block"], cells: Cells
    ) -> Mapping[str, Any]:
        """Computes the values of a block of cells that `reductions` take, by name.

        With `by_document`, it is also called with both arguments transposed.

        Args:
          cosine: cosine similarities in float32.
          cells: the relation of each document to each query. Cells that are `outside`
            must not affect the reductions.
        """

    @abstractmethod
    def loss(self, totals: Totals, columns: Totals) -> Float[Array, "queries"]:
        """Computes the loss of each query.

        Args:
          totals: reductions of `values` over all documents of the global batch.
          columns: reductions over all queries of the global batch, for each query's own
            positive; empty without `by_document`.
        """

    def metrics(self, totals: Totals) -> Mapping[str, Float[Array, "queries"]]:
        """Returns further metrics, one number per query; their means are logged."""
        del totals
        return {}

    def terms(self, totals: Totals, columns: Totals) -> QueryTerms:
        """Loss and metrics of each query, from the completed reductions."""
        hardest = totals["hardest"]
        return QueryTerms(
            self.loss(totals, columns),
            totals["own"] > hardest,
            hardest,
            totals["masked"].astype(jnp.int32),
            jax.tree.map(jax.lax.stop_gradient, dict(self.metrics(totals))),
        )


CONTRAST: Mapping[str, type[Reduction]] = {
    "own": Sum,
    "hardest": Maximum,
    "masked": Sum,
}
"""Reductions for the metrics that every objective has."""


def contrast_values(
    cosine: Float[Array, "queries block"], cells: Cells
) -> dict[str, Any]:
    """Values of a block of cells for `CONTRAST`."""
    return {
        "own": jnp.where(cells.own, cosine, 0.0),
        "hardest": jnp.where(cells.outside | cells.positive, -1.0, cosine),
        "masked": cells.ignored,
    }
