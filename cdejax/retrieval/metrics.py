"""Scores of ranked lists, query by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from cdejax.retrieval.measures import DEFAULT, measure_of
from cdejax.retrieval.measures.base import Measure, Ranked, Relevant

Qrels = Mapping[str, Mapping[str, int]]
"""{query id: {document id: grade}}; a grade above 0 means relevant."""
_BLOCK = 512


def judged(query_ids: Sequence[str], qrels: Qrels) -> list[int]:
    """Positions of the queries with at least one relevant document."""
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
    """Scores of every query, by the measure's name.

    Args:
      ids: document positions, best first; -1 ends a list early (an empty list
        scores 0).
      query_ids: external id of every row; each needs a relevant document (`judged`).
      document_ids: external id of every position.
      qrels: relevance judgments.
      measures: names that `cdejax.retrieval.measures.measure_of` accepts.

    Raises:
      ValueError: a query has no relevant document, so no measure is defined; or there
        is no measure with a given name.
    """
    if len(judged(query_ids, qrels)) < len(query_ids):
        known = {query_ids[row] for row in judged(query_ids, qrels)}
        bad = next(query for query in query_ids if query not in known)
        raise ValueError(f"query {bad!r} has no relevant document; leave it out")
    chosen = [measure_of(name) for name in measures]
    standard = [measure.name for measure in chosen if measure.function is None]
    found = _by_library(ids, query_ids, document_ids, qrels, standard)
    for measure in chosen:
        if measure.function is not None:
            found[measure.name] = _by_function(
                measure, ids, query_ids, document_ids, qrels
            )
    return {measure.name: found[measure.name] for measure in chosen}


def _by_library(
    ids: Int[np.ndarray, "queries k"],
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    qrels: Qrels,
    names: Sequence[str],
) -> dict[str, Float[np.ndarray, "queries"]]:
    """Scores by the measures of ir-measures.

    Only the order of a list counts: ir-measures gets ranks, not scores, since its back
    ends break ties differently.
    """
    import ir_measures

    if not names:  # which it cannot compute
        return {}
    parsed = [ir_measures.parse_measure(name) for name in names]
    out = {name: np.zeros(len(query_ids)) for name in names}
    for start in range(0, len(query_ids), _BLOCK):
        block = range(start, min(start + _BLOCK, len(query_ids)))
        run = {query_ids[row]: _ranked(ids[row], document_ids) for row in block}
        gold = {query_ids[row]: dict(qrels[query_ids[row]]) for row in block}
        row_of = {query_ids[row]: row for row in block}
        for metric in ir_measures.iter_calc(parsed, gold, run):
            out[str(metric.measure)][row_of[metric.query_id]] = metric.value
    return out


def _ranked(ids: Int[np.ndarray, "k"], document_ids: Sequence[str]) -> dict[str, float]:
    """One list in the format of ir-measures, with the negated rank as the score."""
    found = [int(i) for i in ids if i >= 0]
    return {document_ids[i]: -float(rank) for rank, i in enumerate(found)}


def _by_function(
    measure: Measure,
    ids: Int[np.ndarray, "queries k"],
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    qrels: Qrels,
) -> Float[np.ndarray, "queries"]:
    """Scores by a measure that ir-measures lacks."""
    assert measure.function is not None
    values = np.zeros(len(query_ids))
    for row, query in enumerate(query_ids):
        grades = _grades(ids[row], document_ids, qrels[query])
        values[row] = measure.function(*grades, measure.cutoff)
    return values


def _grades(
    ids: Int[np.ndarray, "k"], document_ids: Sequence[str], judgments: Mapping[str, int]
) -> tuple[Ranked, Relevant]:
    """Grades of the ranked documents, and of all documents relevant to the query."""
    found = [judgments.get(document_ids[int(i)], 0) for i in ids if i >= 0]
    relevant = sorted(
        (grade for grade in judgments.values() if grade > 0), reverse=True
    )
    return np.maximum(np.array(found, np.int64), 0), np.array(relevant, np.int64)
