"""Exact search against float64 NumPy."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.retrieval import search as module
from cdejax.retrieval.search import search

MERGE: Any = module._merge


def oracle(queries, documents, k):
    scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


@pytest.mark.parametrize("blocks", [(4, 8), (64, 16), (1024, 16384)])
def test_equals_float64_numpy(blocks):
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(37, 24)).astype(np.float32)
    documents = rng.normal(size=(211, 24)).astype(np.float32)
    scores, ids = search(
        queries, documents, 20, query_block=blocks[0], document_block=blocks[1]
    )
    expected, order = oracle(queries, documents, 20)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert scores.dtype == np.float32
    assert ids.dtype == np.int32


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    queries=st.integers(1, 9),
    documents=st.integers(1, 40),
    k=st.integers(1, 50),
)
def test_ties_go_to_the_lower_index(seed, queries, documents, k):
    rng = np.random.default_rng(seed)
    # small integers: many exact ties, zeros of both signs among them
    left = rng.integers(-1, 2, size=(queries, 3)).astype(np.float32)
    right = -rng.integers(-1, 2, size=(documents, 3)).astype(np.float32)
    scores, ids = search(left, right, k, query_block=4, document_block=8)
    expected, order = oracle(left, right, k)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(scores, expected)
    assert ids.shape == (queries, min(k, documents))


def test_equal_documents_far_apart_are_tied():
    rng = np.random.default_rng(1)
    documents = np.repeat(rng.normal(size=(1, 384)), 3000, 0).astype(np.float32)
    queries = rng.normal(size=(5, 384)).astype(np.float32)
    _, ids = search(queries, documents, 50, document_block=256)
    np.testing.assert_array_equal(ids, np.tile(np.arange(50), (5, 1)))


def test_reads_a_memory_map_and_low_precision(tmp_path):
    documents = np.random.default_rng(2).normal(size=(50, 8)).astype(np.float16)
    np.save(tmp_path / "d.npy", documents)
    mapped = np.load(tmp_path / "d.npy", mmap_mode="r")
    scores, ids = search(documents[:3], mapped, 1)
    expected, order = oracle(documents[:3], documents, 1)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_never_holds_all_scores():
    lowered = MERGE.lower(
        *module._nothing(64, 10),
        np.zeros((64, 16), np.float32),
        np.zeros((128, 16), np.float32),
        0,
        128,
    )
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < 64 * (128 + 10) * 4 * 8


def test_full_precision_is_asked_for():
    args = np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float32), 0, 4
    text = str(jax.make_jaxpr(module._merge)(*module._nothing(4, 2), *args))
    assert text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == 1


def test_few_compilations():
    MERGE.clear_cache()
    for count in (300, 301, 400, 511, 512):
        vectors = np.ones((count, 4), np.float32)
        search(vectors, vectors, 3)
    assert MERGE._cache_size() == 1


def test_no_queries():
    scores, ids = search(np.zeros((0, 4)), np.ones((3, 4)), 2)
    assert scores.shape == ids.shape == (0, 2)


@pytest.mark.parametrize(
    ("queries", "documents", "k", "match"),
    [
        (np.ones((2, 3)), np.full((4, 3), np.nan), 1, "vector 0 is not finite"),
        (np.array([[1.0], [np.inf]]), np.ones((4, 1)), 1, "vector 1 is not finite"),
        (np.ones((2, 3)), np.ones((2, 4)), 1, "dimension 3, documents 4"),
        (np.ones(3), np.ones((2, 3)), 1, r"both must be \[rows, dim\]"),
        (np.ones((2, 3)), np.ones((2, 3)), 0, "k 0"),
        (np.ones((2, 3)), np.ones((0, 3)), 1, "no documents"),
    ],
)
def test_refuses(queries, documents, k, match):
    with pytest.raises(ValueError, match=match):
        search(queries, documents, k)
