"""Which queries and documents form a step: the plan's pairs, negatives and context."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from cdejax.training.batch import BatchSettings

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.data.pairs import PairTable

_CONTEXT, _NEGATIVES = 1, 2
"""Purposes of random draws, so that they are independent."""


class StepRows(NamedTuple):
    """Numbers of the texts of a step, in the order of the plan."""

    query: Int[np.ndarray, "batch"]
    """Queries."""
    document: Int[np.ndarray, "columns"]
    """Documents: the positives, then the hard negatives of each query."""
    owner: Int[np.ndarray, "columns"]
    """Index of the query that each document belongs to."""
    real: Bool[np.ndarray, "columns"]
    """False for placeholders of hard negatives that a query lacks."""
    context: Int[np.ndarray, "context"]
    """Documents sampled as context."""


class StepSampler:
    """Samples the texts of a step: a pure function of plan, seed and step.

    Args:
      table: the training pairs.
      plan: which of them form which step.
      settings: seed, number of hard negatives and of context documents.
    """

    def __init__(self, table: PairTable, plan: Plan, settings: BatchSettings):
        self.table, self.plan, self.settings = table, plan, settings

    def rows(self, step: int) -> StepRows:
        """The texts of a step."""
        picked = self.plan.rows(step)
        query, document = self.table.query[picked], self.table.document[picked]
        owner, real = np.arange(len(picked)), np.ones(len(picked), bool)
        if self.settings.negatives_per_query:
            negative, present = self._negatives(step, picked)
            owner = np.concatenate([owner, np.repeat(owner, negative.shape[1])])
            document = np.concatenate([document, negative.ravel()])
            real = np.concatenate([real, present.ravel()])
        context = self._generator(step, _CONTEXT).permutation(document[real])
        size = self.settings.context_size
        return StepRows(query, document, owner, real, context[:size])

    def _negatives(
        self, step: int, picked: Int[np.ndarray, "batch"]
    ) -> tuple[Int[np.ndarray, "batch negatives"], Bool[np.ndarray, "batch negatives"]]:
        """Samples hard negatives, and tells which are not mere placeholders.

        A query with too few has its positive in place of each that it lacks.
        """
        count = self.settings.negatives_per_query
        out = np.repeat(self.table.document[picked][:, None], count, 1)
        present = np.zeros(out.shape, bool)
        generator = self._generator(step, _NEGATIVES)
        for i, row in enumerate(picked):
            # A copy: NumPy refuses to permute an empty row of a file.
            found = np.array(self.table.negatives[int(row)])
            drawn = generator.permutation(found)[:count]
            out[i, : len(drawn)], present[i, : len(drawn)] = drawn, True
        return out, present

    def _generator(self, step: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, step, purpose])
