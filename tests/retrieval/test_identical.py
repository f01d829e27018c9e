"""Queries that are documents of the corpus: their own document is not ranked."""

import numpy as np
import pytest
from flax import nnx

from cdejax.config import EvaluationConfig
from cdejax.data.beir import Collection
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.retrieval import evaluate
from cdejax.retrieval.bm25 import BM25
from cdejax.retrieval.evaluate import evaluate_all, evaluate_bm25, evaluate_embedder
from cdejax.retrieval.identical import own_documents, ranked
from cdejax.retrieval.report import table
from tests.tiny import TOPICS

WORDS = " ".join(TOPICS.values()).split()


def arguments(count=24):
    """As ArguAna: query `Na` is document `Na`, which has a title; `Nb` answers it."""
    rng = np.random.default_rng(0)
    documents, queries, qrels, titles = {}, {}, {}, {}
    for number in range(count):
        words = rng.choice(WORDS, 6, replace=False)
        titles[f"{number}a"] = "some debate"
        queries[f"{number}a"] = " ".join(words)
        documents[f"{number}a"] = f"some debate {queries[f'{number}a']}"
        documents[f"{number}b"] = " ".join([*words[:4], *rng.choice(WORDS, 2)])
        qrels[f"{number}a"] = {f"{number}b": 1}
    return Collection(
        *(list(documents), list(documents.values())),
        *(list(queries), list(queries.values())),
        qrels,
        {},
        titles,
    )


@pytest.fixture(scope="module")
def embedder(minilm):
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    model = BiEncoder(Bert(config, nnx.Rngs(0)))
    return Embedder(model, Tokenizer.load(minilm), max_length=16)


def by_hand(scores, collection, left_out):
    """pytrec_eval's figures of a run without the (query id, document id) left out."""
    import pytrec_eval

    run = {
        query: {
            document: float(score)
            for document, score in zip(collection.document_ids, row, strict=True)
            if (query, document) not in left_out and np.isfinite(score)
        }
        for query, row in zip(collection.query_ids, scores, strict=True)
    }
    measures = pytrec_eval.RelevanceEvaluator(
        {query: dict(grades) for query, grades in collection.qrels.items()},
        {"ndcg_cut.10", "recall.100", "map"},
    ).evaluate(run)
    names = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "AP": "map"}
    return {
        ours: [measures[query][theirs] for query in collection.query_ids]
        for ours, theirs in names.items()
    }


def dense(embedder, collection):
    documents = embedder.encode(collection.documents)
    return embedder.encode(collection.queries, "query") @ documents.T


def lexical(collection):
    """BM25's scores of all documents; equal ones are told apart by their order."""
    count = len(collection.documents)
    found, ids = BM25(collection.documents).search(collection.queries, count)
    scores = np.full((len(found), count), -np.inf)
    for row in range(len(found)):
        kept = ids[row][ids[row] >= 0]
        scores[row, kept] = -np.arange(len(kept))
    return scores


def assert_same(result, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(result.scores[name], values, atol=1e-6)


def test_figures_are_those_of_a_run_filtered_by_hand(embedder):
    data = arguments()
    own = {(id, id) for id in data.query_ids}
    expected = by_hand(dense(embedder, data), data, own)
    result = evaluate_embedder(embedder, data)
    assert_same(result, expected)
    assert np.mean(expected["nDCG@10"]) > 0.02 + np.mean(
        by_hand(dense(embedder, data), data, set())["nDCG@10"]
    )
    assert_same(evaluate_bm25(data), by_hand(lexical(data), data, own))
    assert result.settings["own_documents"] == len(data.queries)


def test_equal_ids_of_other_texts_are_ranked_unless_beirs_rule_is_asked_for(embedder):
    data = arguments()
    data.queries[:] = [f"{text} indeed" for text in data.queries]
    result = evaluate_embedder(embedder, data)
    assert_same(result, by_hand(dense(embedder, data), data, set()))
    assert result.settings["own_documents"] == 0
    own = {(id, id) for id in data.query_ids}
    for found, scores in (
        (
            evaluate_embedder(embedder, data, ignore_identical_ids=True),
            dense(embedder, data),
        ),
        (evaluate_bm25(data, ignore_identical_ids=True), lexical(data)),
    ):
        assert_same(found, by_hand(scores, data, own))
        assert found.settings["own_documents"] == len(data.queries)
    config = EvaluationConfig(ignore_identical_ids=True)
    settings = [r.settings for r in evaluate_all(embedder, {"a": data}, config)]
    assert [x["own_documents"] for x in settings] == [len(data.queries)] * 2


def test_a_judged_answer_stays_whatever_it_says():
    data = arguments(3)
    data.qrels["1a"]["1a"] = 1
    data.qrels["2a"]["2a"] = 0
    assert own_documents(data).tolist() == [0, -1, 4]
    assert own_documents(data, by_id=True).tolist() == [0, 2, 4]


def test_ids_without_a_text_of_the_query_are_another_document():
    data = arguments(4)
    data.queries[1] = data.documents[2]  # with the title
    data.queries[2] += " "
    data.queries[3] = data.documents[7]  # says what document `3b` says, not `3a`
    assert own_documents(data).tolist() == [0, 2, 4, -1]


def test_lists_keep_their_length_and_order():
    rng = np.random.default_rng(0)
    lists = np.stack([rng.permutation(20) for _ in range(50)])
    lists[0, 5:] = -1
    own = rng.integers(-1, 20, 50)
    found = ranked(lambda k: lists[:, :k], 10, own)
    for row, mine, kept in zip(lists, own, found, strict=True):
        expected = [i for i in row[:11] if i != mine or i < 0][:10]
        assert kept[kept >= 0].tolist() == [i for i in expected if i >= 0]
    np.testing.assert_array_equal(
        ranked(lambda k: lists[:, :k], 10, np.full(50, -1)), lists[:, :10]
    )


def test_an_answer_behind_the_depth_moves_up(embedder, monkeypatch):
    data = arguments()
    scores = dense(embedder, data)
    monkeypatch.setattr(evaluate, "DEPTH", 10)
    found = evaluate_embedder(embedder, data, measures=["R@10"]).scores["R@10"]
    own = np.arange(0, len(data.documents), 2)
    scores[np.arange(len(own)), own] = -1
    best = np.argsort(-scores, axis=1)[:, :10]
    assert found.tolist() == [float(i + 1 in best[row]) for row, i in enumerate(own)]


def test_the_table_says_how_many_were_left_out():
    from rich.console import Console

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    data = arguments()
    data.counts["unknown_ids"] = 3
    console.print(table([evaluate_bm25(data, name="arguana")], resamples=20))
    said = " ".join(console.export_text().split())
    assert "arguana: 24 rankings leave out the query's own document" in said
    assert "arguana: 3 judgments of unknown ids are left out" in said
