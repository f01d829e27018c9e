"""Metrics against pytrec_eval and against plain formulas."""

import numpy as np
import pytest

from cdejax.retrieval.measures import DEFAULT
from cdejax.retrieval.metrics import judged, per_query

DOCUMENTS = [f"d{i}" for i in range(150)]


@pytest.fixture(scope="module")
def case():
    """Lists of mixed length (some empty) with graded judgments."""
    rng = np.random.default_rng(0)
    queries = [f"q{i}" for i in range(600)]
    ids = np.stack([rng.permutation(150)[:120] for _ in queries]).astype(np.int32)
    for row in range(0, 600, 7):
        ids[row, rng.integers(0, 20) :] = -1
    qrels = {}
    for query in queries:
        chosen = rng.permutation(150)[: rng.integers(2, 30)]
        grades = rng.integers(0, 4, len(chosen))
        grades[0] = 2
        qrels[query] = {f"d{i}": int(g) for i, g in zip(chosen, grades, strict=True)}
    return ids, queries, qrels


def formulas(ids, grades):
    """(nDCG@10, R@100, RR@10, AP) of one list."""
    ranked = [grades.get(f"d{i}", 0) for i in ids if i >= 0]
    relevant = sum(g > 0 for g in grades.values())
    gain = sum(g / np.log2(r + 2) for r, g in enumerate(ranked[:10]))
    ideal = sorted(grades.values(), reverse=True)[:10]
    best = sum(g / np.log2(r + 2) for r, g in enumerate(ideal))
    hits = [r for r, g in enumerate(ranked) if g > 0]
    first = 1 / (hits[0] + 1) if hits and hits[0] < 10 else 0.0
    precision = sum((n + 1) / (r + 1) for n, r in enumerate(hits))
    recall = sum(r < 100 for r in hits) / relevant
    return gain / best, recall, first, precision / relevant


def test_equals_plain_formulas(case):
    ids, queries, qrels = case
    ours = per_query(ids, queries, DOCUMENTS, qrels)
    assert tuple(ours) == DEFAULT
    expected = np.array([formulas(ids[i], qrels[q]) for i, q in enumerate(queries)])
    for column, name in enumerate(DEFAULT):
        np.testing.assert_allclose(ours[name], expected[:, column], atol=1e-12)
    assert (ours["nDCG@10"] == 0).any()


def test_equals_pytrec_eval(case):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    ids, queries, qrels = case
    names = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "AP": "map"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(
        {
            q: {f"d{i}": 1 - r / 1000 for r, i in enumerate(ids[row]) if i >= 0}
            for row, q in enumerate(queries)
        }
    )
    ours = per_query(ids, queries, DOCUMENTS, qrels)
    for name, other in names.items():
        expected = [theirs[q][other] if q in theirs else 0.0 for q in queries]
        np.testing.assert_allclose(ours[name], expected, atol=1e-12)


def test_no_results_count_as_zero():
    ids = np.array([[0], [-1]], np.int32)
    qrels = {"a": {"d0": 1}, "b": {"d0": 1}}
    for values in per_query(ids, ["a", "b"], DOCUMENTS, qrels).values():
        assert values.tolist() == [1.0, 0.0]


def test_queries_without_relevant_documents():
    qrels = {"a": {"d0": 1}, "b": {"d0": 0}}
    assert judged(["b", "a", "c"], qrels) == [1]
    with pytest.raises(ValueError, match="'b' has no relevant document"):
        per_query(np.zeros((2, 1), np.int32), ["a", "b"], DOCUMENTS, qrels)
