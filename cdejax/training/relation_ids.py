"""Ids and surrogate vectors from which the loss relates queries to documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from cdejax.runtime.progress import progress
from cdejax.training.relation import DocumentColumns, QueryRows
from cdejax.training.step_rows import StepRows, StepSampler

if TYPE_CHECKING:
    from cdejax.clustering.vectors import Vectors
    from cdejax.data.pairs import Pairs


class RelationIds:
    """Makes the relation's rows and columns from the texts of a step.

    Args:
      pairs: the pairs, with all known positives.
      vectors: surrogate vectors, or None if none are used.
      known_width: maximum number of known positives of a query outside its step.
    """

    def __init__(self, pairs: Pairs, vectors: Vectors | None, known_width: int):
        self._pairs, self._vectors, self._known_width = pairs, vectors, known_width

    def query_rows(self, rows: StepRows, chosen: Int[np.ndarray, "n"]) -> QueryRows:
        """The relation's rows for some queries of a step."""
        content = self._pairs.document_content
        positive = rows.document[: len(rows.query)]
        known = known_ids(self._pairs, rows)
        padded = np.full((len(rows.query), self._known_width), -1, np.int32)
        padded[:, : known.shape[1]] = known
        return QueryRows(
            chosen.astype(np.int32),
            self._pairs.query_content[rows.query[chosen]].astype(np.int32),
            content[positive[chosen]].astype(np.int32),
            padded[chosen],
            self._surrogates("queries", rows.query[chosen]),
            self._surrogates("documents", positive[chosen]),
        )

    def document_columns(
        self, rows: StepRows, chosen: Int[np.ndarray, "n"]
    ) -> DocumentColumns:
        """The relation's columns for some documents of a step."""
        owner, document = rows.owner[chosen], rows.document[chosen]
        return DocumentColumns(
            owner.astype(np.int32),
            self._pairs.query_content[rows.query[owner]].astype(np.int32),
            self._pairs.document_content[document].astype(np.int32),
            chosen < len(rows.query),
            rows.real[chosen],
            self._surrogates("documents", document),
        )

    def _surrogates(
        self, side: str, rows: Int[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n dim"]:
        if self._vectors is None:
            return np.zeros((len(rows), 0), np.float32)
        return np.asarray(getattr(self._vectors, side)[rows], np.float32)


def known_ids(pairs: Pairs, rows: StepRows) -> Int[np.ndarray, "batch known"]:
    """Ids of known positives that do not follow from a step's own pairs.

    Placeholders of hard negatives do not count as documents of the step.
    """
    content = pairs.document_content[rows.document]
    positive, negative = np.split(content, [len(rows.query)])
    return pairs.known.beyond_batch(
        pairs.query_content[rows.query],
        positive,
        negative[rows.real[len(rows.query) :]],
    )


def widest_known(pairs: Pairs, sampler: StepSampler) -> int:
    """Maximum number of known positives of a query outside its step, over all steps.

    Steps in which no query has several known positives, usually all, are skipped.
    """
    plan, widest = sampler.plan, 0
    several = pairs.known.has_several(pairs.query_content)
    with progress("look at known positives", plan.total_steps) as advance:
        for step in range(plan.total_steps):
            if several[sampler.table.query[plan.rows(step)]].any():
                found = known_ids(pairs, sampler.rows(step))
                widest = max(widest, found.shape[1])
            advance(1)
    return widest
