"""Ranked lists scored query by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from cdejax.retrieval.measures import DEFAULT, measure_of
from cdejax.retrieval.measures.base import Ranked, Relevant

Qrels = Mapping[str, Mapping[str, int]]
"""{query id: {document id: grade}}; grades above 0 are relevant."""


def judged(query_ids: Sequence[str], qrels: Qrels) -> list[int]:
    """Positions of the queries that have a relevant document."""
    return [
        row
        for row, query in enumerate(query_ids)
        if any(grade > 0 for grade in qrels.get(query, {}).values())
    ]


def per_query(
    ids: Int[np.ndarray, "queries k"],
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    qrels: Qrels,
    measures: Sequence[str] = DEFAULT,
) -> dict[str, Float[np.ndarray, "queries"]]:
    """Every measure for every query, by the measure's name.

    Args:
      ids: document positions, best first; -1 ends a list early (an empty one
        scores 0).
      query_ids: external id of every row; each needs a relevant document (`judged`).
      document_ids: external id of every position.
      qrels: relevance judgments.
      measures: names as `cdejax.retrieval.measures.measure_of` takes them.

    Raises:
      ValueError: a query has no relevant document, so that no measure is defined; or
        there is no measure of a name.
    """
    if len(judged(query_ids, qrels)) < len(query_ids):
        known = {query_ids[row] for row in judged(query_ids, qrels)}
        bad = next(query for query in query_ids if query not in known)
        raise ValueError(f"query {bad!r} has no relevant document; leave it out")
    chosen = [measure_of(name) for name in measures]
    out = {one.name: np.zeros(len(query_ids)) for one in chosen}
    for row, query in enumerate(query_ids):
        grades = _grades(ids[row], document_ids, qrels[query])
        for one in chosen:
            out[one.name][row] = one(*grades)
    return out


def _grades(
    ids: Int[np.ndarray, "k"], document_ids: Sequence[str], judgments: Mapping[str, int]
) -> tuple[Ranked, Relevant]:
    """Grades of a list's documents, and of all that are relevant to its query."""
    found = [judgments.get(document_ids[int(i)], 0) for i in ids if i >= 0]
    relevant = sorted(
        (grade for grade in judgments.values() if grade > 0), reverse=True
    )
    return np.maximum(np.array(found, np.int64), 0), np.array(relevant, np.int64)
