"""What an objective is: values of cells, reduced to one loss per query.

A cell is a query with a document. An objective says which values it makes of a block of
cells and how each is reduced over documents; `blocks` and `ring` carry the reductions
out without the whole score matrix, on one device or many.
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
"""The reductions of each query by name."""


class QueryTerms(NamedTuple):
    """What the loss and its metrics are made of, one number per query."""

    loss: Float[Array, "queries"]
    """The batch's loss is their mean."""
    correct: Bool[Array, "queries"]
    """The query's own positive scores above every negative."""
    hardest: Float[Array, "queries"]
    """Cosine of the hardest negative (-1 where there is none)."""
    masked: Int[Array, "queries"]
    """Cells that are neither positive nor negative."""
    metrics: Mapping[str, Float[Array, "queries"]]
    """The objective's own metrics."""


class Objective(ABC):
    """A contrastive objective; subclasses are frozen dataclasses of its settings.

    The loss of the batch is the mean over its queries of `loss`. It may depend on the
    reductions over each query's documents (the rows of the score matrix) and, with
    `by_document`, on those over the queries of the query's own positive (its column).
    """

    reductions: ClassVar[Mapping[str, type[Reduction]]]
    """How each of `values` is reduced."""
    by_document: ClassVar[bool] = False
    """Whether `loss` needs the reductions over queries, too."""
    needs_surrogate: ClassVar[bool] = False
    """Whether `cells.surrogate`, the surrogate model's scores, is needed."""
    needs_hard_negatives: ClassVar[bool] = False
    """Whether it is defined only with hard negatives."""

    @abstractmethod
    def values(
        self, cosine: Float[Array, "queries block"], cells: Cells
    ) -> Mapping[str, Any]:
        """Values of a block of cells by name, as `reductions` take them.

        With `by_document`, it is also called with both arguments transposed.

        Args:
          cosine: float32 cosine similarities.
          cells: what each document is to each query. Cells `outside` must not count.
        """

    @abstractmethod
    def loss(self, totals: Totals, columns: Totals) -> Float[Array, "queries"]:
        """The loss of each query.

        Args:
          totals: reductions of `values` over all documents of the global batch.
          columns: the same over all queries, for each query's own positive; empty
            without `by_document`.
        """

    def metrics(self, totals: Totals) -> Mapping[str, Float[Array, "queries"]]:
        """Further metrics by name, one number per query; their means are logged."""
        del totals
        return {}

    def terms(self, totals: Totals, columns: Totals) -> QueryTerms:
        """Loss and metrics of each query, once all documents have been seen."""
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
"""Reductions behind the metrics that every objective has."""


def contrast_values(
    cosine: Float[Array, "queries block"], cells: Cells
) -> dict[str, Any]:
    """Values of a block of cells for `CONTRAST`."""
    return {
        "own": jnp.where(cells.own, cosine, 0.0),
        "hardest": jnp.where(cells.outside | cells.positive, -1.0, cosine),
        "masked": cells.ignored,
    }
