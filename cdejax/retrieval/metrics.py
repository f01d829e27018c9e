"""Retrieval metrics of ranked lists, per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

MEASURES = ("nDCG@10", "R@100", "RR@10", "AP")
"""Names as in ir-measures; AP is over the whole list that it is given."""

Qrels = Mapping[str, Mapping[str, int]]
"""{query id: {document id: grade}}; grades above 0 are relevant."""

_BLOCK = 512


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
    measures: Sequence[str] = MEASURES,
) -> dict[str, Float[np.ndarray, "queries"]]:
    """Every measure for every query, through ir-measures.

    The lists' order is what counts: ir-measures is given ranks, not scores, since its
    back ends each break ties in their own way.

    Args:
      ids: document positions, best first; -1 ends a list early (an empty one
        scores 0).
      query_ids: external id of every row; each needs a relevant document (`judged`).
      document_ids: external id of every position.
      qrels: relevance judgments.
      measures: names as in ir-measures.

    Raises:
      ValueError: a query has no relevant document, so that no measure is defined.
    """
    import ir_measures

    if len(judged(query_ids, qrels)) < len(query_ids):
        known = {query_ids[row] for row in judged(query_ids, qrels)}
        bad = next(query for query in query_ids if query not in known)
        raise ValueError(f"query {bad!r} has no relevant document; leave it out")
    parsed = [ir_measures.parse_measure(name) for name in measures]
    out = {str(measure): np.zeros(len(query_ids)) for measure in parsed}
    for start in range(0, len(query_ids), _BLOCK):
        block = range(start, min(start + _BLOCK, len(query_ids)))
        run = {query_ids[row]: _ranked(ids[row], document_ids) for row in block}
        gold = {query_ids[row]: dict(qrels[query_ids[row]]) for row in block}
        row_of = {query_ids[row]: row for row in block}
        for metric in ir_measures.iter_calc(parsed, gold, run):
            out[str(metric.measure)][row_of[metric.query_id]] = metric.value
    return out


def _ranked(ids: Int[np.ndarray, "k"], document_ids: Sequence[str]) -> dict[str, float]:
    """One list as ir-measures reads it, with minus the rank for a score."""
    found = [int(i) for i in ids if i >= 0]
    return {document_ids[i]: -float(rank) for rank, i in enumerate(found)}
