"""Our measures against trec_eval's, to the last bit."""

import ir_measures
import numpy as np
import pytest

from cdejax.retrieval.measures import DEFAULT
from cdejax.retrieval.metrics import per_query

DOCUMENTS = [f"d{i}" for i in range(400)]


def lists(rng: np.random.Generator, queries: int, depth: int) -> np.ndarray:
    """Ranked lists, some of which end early or are empty."""
    ids = np.stack([rng.permutation(len(DOCUMENTS))[:depth] for _ in range(queries)])
    for row in range(0, queries, 5):
        ids[row, rng.integers(0, depth) :] = -1
    return ids


def judgments(rng: np.random.Generator, query_ids: list[str]) -> dict:
    """Grades from -2 to 4 of few or many documents, one of which is relevant."""
    qrels = {}
    for query in query_ids:
        chosen = rng.permutation(DOCUMENTS)[: rng.choice([1, 5, 300])]
        grades = rng.integers(-2, 5, len(chosen))
        grades[0] = 2
        qrels[query] = dict(zip(map(str, chosen), map(int, grades), strict=True))
    return qrels


@pytest.mark.parametrize("depth", [1, 50, 400])
def test_values_are_those_of_trec_eval(depth):
    rng = np.random.default_rng(depth)
    query_ids = [f"q{i}" for i in range(200)]
    ids, qrels = lists(rng, 200, depth), judgments(rng, query_ids)
    names = (*DEFAULT, "nDCG", "nDCG@3", "AP@10", "R@5", "RR", "RR@3")
    ours = per_query(ids, query_ids, DOCUMENTS, qrels, names)
    run = {
        query: {DOCUMENTS[i]: -float(rank) for rank, i in enumerate(row) if i >= 0}
        for query, row in zip(query_ids, ids, strict=True)
    }
    parsed = [ir_measures.parse_measure(name) for name in names]
    theirs = {(str(m.measure), m.query_id): m.value for m in
              ir_measures.iter_calc(parsed, qrels, run)}  # fmt: skip
    for name in names:
        expected = [theirs.get((name, query), 0.0) for query in query_ids]
        np.testing.assert_array_equal(ours[name], expected, err_msg=name)
