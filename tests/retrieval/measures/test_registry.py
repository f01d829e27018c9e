"""Names of measures, and how one more is added."""

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from rich.console import Console

from cdejax.config import TrainingConfig
from cdejax.data.beir import Collection
from cdejax.retrieval.evaluate import Result, evaluate_bm25, evaluate_embedder
from cdejax.retrieval.measures import DEFAULT, Measure, measure_of
from cdejax.retrieval.measures.registry import MEASURES
from cdejax.retrieval.report import (
    read_results,
    summary,
    table,
    write_chart,
    write_report,
)


@pytest.mark.parametrize("name", [*DEFAULT, "nDCG", "AP@1000"])
def test_a_name_says_measure_and_cutoff(name):
    found = measure_of(name)
    assert found.name == found.label == name
    assert found.cutoff == (int(name.split("@")[1]) if "@" in name else None)
    assert found.as_gain(0.25) == 0.25


def test_checkpoints_are_selected_by_a_measure_that_reports_show():
    assert TrainingConfig().select_by == DEFAULT[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ndcg@10",
            "measure 'ndcg@10': no such measure. Take one of ir-measures",
        ),
        ("nDCG@0", "a cutoff of 1 or more, as in `nDCG@10`"),
        ("nDCG@ten", "measure 'nDCG@ten': no such measure"),
        ("nDCG@", "no such measure"),
        ("R", "no such measure"),
        ("alpha_nDCG@10", "no such measure"),
        ("", "no such measure"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        measure_of(name)


def success(ranked, relevant, cutoff):
    """Whether a relevant document is among the first."""
    return float(np.any(ranked[:cutoff] > 0))


def first_hit(ranked, relevant, cutoff):
    """Rank of the first relevant document, one more than the list is long if none."""
    hits = np.flatnonzero(ranked[:cutoff])
    return float(hits[0] + 1 if len(hits) else len(ranked[:cutoff]) + 1)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Two more measures, one of which is better when it is lower."""
    for made in (
        Measure("Found", success, title="found"),
        Measure("First", first_hit, higher_is_better=False),
    ):
        monkeypatch.setitem(MEASURES, made.symbol, made)
    return ("nDCG@10", "Found@5", "First")


WORDS = ["red", "blue", "green", "grey"]
RELEVANT = [0, 1, 3]
"""Document that answers each query: BM25 finds the first two of them."""


@pytest.fixture
def collection() -> Collection:
    documents = [f"{word} paint" for word in WORDS]
    queries = ["red", "blue", "green"]
    qrels = {f"q{i}": {f"d{d}": 1} for i, d in enumerate(RELEVANT)}
    ids = [f"d{i}" for i in range(len(WORDS))]
    return Collection(ids, documents, list(qrels), queries, qrels, {})


def test_a_new_measure_is_among_the_figures(added, collection):
    result = evaluate_bm25(collection, measures=added)
    assert tuple(result.scores) == added
    assert result.scores["Found@5"].tolist() == [1.0, 1.0, 0.0]
    assert result.scores["First"].tolist() == [1.0, 1.0, 2.0]
    assert result.interval("Found@5").mean == pytest.approx(2 / 3)
    run = {"q0": {"d0": 1.0}, "q1": {"d1": 1.0}, "q2": {"d2": 1.0}}
    judge = pytrec_eval.RelevanceEvaluator(collection.qrels, {"success.5"})
    theirs = [found["success_5"] for found in judge.evaluate(run).values()]
    assert result.scores["Found@5"].tolist() == theirs
    alone = evaluate_bm25(collection, measures=["First"])
    assert alone.scores["First"].tolist() == [1.0, 1.0, 2.0]


def test_a_new_measure_is_in_reports_under_its_label(added, collection, tmp_path):
    ours = evaluate_bm25(collection, measures=added)
    other = Result("other", ours.collection, ours.query_ids, ours.scores)
    results = [ours, other]
    write_report(results, tmp_path, measure="Found@5", resamples=10)
    assert read_results(tmp_path)[0].scores["Found@5"].tolist() == [1.0, 1.0, 0.0]
    rows = summary(results, baseline="BM25", resamples=10)
    assert rows[0]["measures"]["Found@5"]["mean"] == pytest.approx(2 / 3)
    assert rows[1]["difference"]["Found@5"]["mean"] == 0
    console = Console(record=True, width=200, file=io.StringIO())
    for measure in ("Found@5", "First"):
        console.print(table(results, baseline="BM25", measure=measure, resamples=10))
        write_chart(results, tmp_path / "chart.png", measure=measure, resamples=10)
    text = console.export_text()
    assert "found@5" in text
    assert "gain: over BM25" in text
    assert "change: over BM25" in text  # a lower first rank is no gain


def test_unknown_measures_are_refused_before_any_work(collection):
    embedder: Any = SimpleNamespace(similarity_fn_name="cosine")
    with pytest.raises(ValueError, match="measure 'Found@5': no such measure"):
        evaluate_embedder(embedder, collection, measures=["Found@5"])


def test_the_best_value_is_the_highest_gain(added):
    assert max([3.0, 1.0, 2.0], key=measure_of("First").as_gain) == 1.0
    assert max([0.1, 0.3, 0.2], key=measure_of("Found@5").as_gain) == 0.3
