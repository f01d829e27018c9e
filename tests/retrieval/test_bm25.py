"""BM25 against its formula."""

import math
import re

import numpy as np
import pytest

from cdejax.retrieval.bm25 import BM25

DOCUMENTS = [
    "The cat sat near another cat.",
    "",
    "Dogs and cats; cats, cats!",
    "of the and",
    "A dog chased the cat over long fields",
    "cat",
    "cat",
]


def formula(documents, query, k1=0.9, b=0.4):
    """Lucene's BM25 in plain Python."""
    stop = {"the", "of", "and", "a", "over", "near"} & set(stopwords())
    texts = [*documents, query]
    rows = [[t for t in re.findall(r"\b\w\w+\b", x.lower()) if t not in stop]
            for x in texts]  # fmt: skip
    *docs, tokens = rows
    mean = sum(map(len, docs)) / len(docs)
    scores = []
    for doc in docs:
        score = 0.0
        for token in tokens:
            n = sum(token in other for other in docs)
            tf = doc.count(token)
            idf = math.log(1 + (len(docs) - n + 0.5) / (n + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(doc) / mean))
        scores.append(score)
    return np.array(scores)


def stopwords():
    from bm25s.stopwords import STOPWORDS_EN

    return STOPWORDS_EN


@pytest.mark.parametrize("query", ["cat", "cats and dogs", "dog chased cat cat"])
def test_equals_the_formula(query):
    expected = formula(DOCUMENTS, query)
    scores, ids = BM25(DOCUMENTS).search([query], 10)
    found = ids[0] >= 0
    assert found.sum() == (expected > 0).sum()
    order = np.argsort(-expected.round(6), kind="stable")[: found.sum()]
    np.testing.assert_array_equal(ids[0, found], order)
    np.testing.assert_allclose(scores[0, found], expected[order], rtol=1e-5)
    assert (scores[0, ~found] == 0).all()


def test_k_cuts_and_ties_go_to_the_lower_index():
    _, ids = BM25(["same words"] * 30).search(["same", "words same"], 5)
    np.testing.assert_array_equal(ids, np.tile(np.arange(5), (2, 1)))


@pytest.mark.parametrize("query", ["", "  ", "the of", "zebra", "x"])
def test_a_query_without_known_words_finds_nothing(query):
    scores, ids = BM25(DOCUMENTS).search([query, "cat"], 3)
    assert (ids[0] == -1).all()
    assert (scores[0] == 0).all()
    assert (ids[1] >= 0).all()


def test_a_corpus_without_words():
    scores, ids = BM25(["", "the", "!"]).search(["cat", ""], 2)
    assert (ids == -1).all()
    assert scores.shape == (2, 2)


def test_empty_documents_are_never_found():
    _, ids = BM25(DOCUMENTS).search(["the cat and the dogs of cats"], 10)
    assert not {1, 3} & set(ids[0].tolist())


def test_refuses():
    with pytest.raises(ValueError, match="no documents"):
        BM25([])
    with pytest.raises(ValueError, match="k 0"):
        BM25(["a cat"]).search(["cat"], 0)


def test_scifact(shared_data):
    """The published figure of this setting, 0.65-0.68 by tokeniser."""
    from cdejax.data.beir import read_collection
    from cdejax.retrieval.evaluate import evaluate_bm25

    collection = read_collection(shared_data / "collections" / "scifact")
    assert 0.65 < evaluate_bm25(collection).scores["nDCG@10"].mean() < 0.69
