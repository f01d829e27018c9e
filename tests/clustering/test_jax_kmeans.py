"""k-means on devices: against FAISS, NumPy in float64, and itself on one device."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from cdejax.clustering import faiss_kmeans, jax_kmeans
from cdejax.clustering.jax_kmeans import first_rows, nearest, split_empty, train
from cdejax.clustering.vectors import unit_rows
from cdejax.config import ClustersConfig


def mixture(rows, dim, topics, spread, seed=0):
    """Unit vectors round random directions, topics of very different sizes."""
    rng = np.random.default_rng(seed)
    centres = unit_rows(rng.normal(size=(topics, dim)))
    topic = rng.choice(topics, rows, p=rng.dirichlet(np.full(topics, 0.5)))
    noise = spread * rng.normal(size=(rows, dim)) / np.sqrt(dim)
    return unit_rows(centres[topic] + noise)


def objective(points, centroids):
    """Mean cosine to the nearest centroid, in float64."""
    return (points.astype(np.float64) @ centroids.T.astype(np.float64)).max(1).mean()


@pytest.mark.parametrize(("niter", "nredo"), [(1, 1), (4, 1), (100, 3)])
def test_every_iteration_is_that_of_faiss(niter, nredo):
    points = mixture(3001, 24, 40, 0.8)
    settings = ClustersConfig(niter=niter, nredo=nredo)
    expected = faiss_kmeans.train(points, 37, settings, 5)
    found = train(points, 37, settings, 5)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.dtype == np.float32


def test_a_restart_ends_when_that_of_faiss_does():
    import faiss

    points, calls = mixture(3001, 24, 40, 0.8), []
    train(points, 37, ClustersConfig(nredo=1), 5, lambda: calls.append(1))
    kmeans = faiss.Kmeans(24, 37, niter=100, seed=5, spherical=True)
    kmeans.train(points)
    assert len(calls) == len(kmeans.iteration_stats or ()) < 100


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_the_objective_is_that_of_faiss(spread):
    points = mixture(6000, 32, 300, spread, seed=1)
    settings = ClustersConfig(niter=30, nredo=2)
    theirs = objective(points, faiss_kmeans.train(points, 150, settings, 2))
    ours = objective(points, train(points, 150, settings, 2))
    assert ours == pytest.approx(theirs, rel=5e-3)


def test_the_objective_on_real_texts_is_that_of_faiss(shared_data):
    from cdejax.clustering.tfidf import fit_tfidf
    from cdejax.data.beir import read_collection

    texts = read_collection(str(shared_data / "collections" / "scifact")).documents
    pairs = np.stack([np.arange(len(texts))] * 2, axis=1)
    points = unit_rows(fit_tfidf(texts, texts, pairs, 128, 0)(texts))
    settings = ClustersConfig(niter=50, nredo=1)
    theirs = objective(points, faiss_kmeans.train(points, 80, settings, 0))
    ours = objective(points, train(points, 80, settings, 0))
    assert ours == pytest.approx(theirs, rel=5e-3)


def test_empty_clusters_are_split_as_by_faiss():
    # Equal points among the first centroids: all but the first of them stay empty.
    points = np.repeat(mixture(20, 8, 20, 1.0), 50, axis=0)
    settings = ClustersConfig(niter=1, nredo=1)
    expected = faiss_kmeans.train(points, 60, settings, 5)
    np.testing.assert_allclose(train(points, 60, settings, 5), expected, atol=1e-6)


def test_splitting_leaves_no_cluster_empty_and_the_others_alone():
    centroids = unit_rows(np.random.default_rng(0).normal(size=(5, 4)))
    counts = np.array([0, 30, 1, 0, 9])
    found = split_empty(centroids, counts, 40)
    np.testing.assert_array_equal(found[2], centroids[2])
    assert len(np.unique(found, axis=0)) == 5
    for row in (0, 3):
        assert (found[row] @ centroids.T).max() == pytest.approx(1, abs=5e-3)


def test_as_many_points_as_centroids_are_the_centroids():
    points = mixture(12, 8, 12, 1.0)
    np.testing.assert_array_equal(train(points, 12, ClustersConfig(), 0), points)


def test_first_rows_are_different_and_seeded():
    rows = first_rows(100, 100, 3)
    assert sorted(rows) == list(range(100))
    np.testing.assert_array_equal(first_rows(100, 7, 3), rows[:7])
    assert first_rows(100, 7, 4).tolist() != rows[:7].tolist()
    assert len(first_rows(10**9, 5, 2**31 + 3 * 15486557)) == 5


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles of points and blocks of centroids, the last ones not full."""
    monkeypatch.setattr(jax_kmeans, "POINTS", 32)
    monkeypatch.setattr(jax_kmeans, "CENTROIDS", 16)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize(("rows", "k"), [(1003, 53), (3, 70), (300, 1)])
def test_assignment_is_the_argmax_in_float64(small_tiles, rows, k):
    points, centroids = mixture(rows, 11, 30, 1.0), mixture(k, 11, 30, 1.0, seed=1)
    scores = points.astype(np.float64) @ centroids.T.astype(np.float64)
    np.testing.assert_array_equal(nearest(centroids)(points), scores.argmax(axis=1))


def test_of_equal_centroids_the_first_is_taken(small_tiles):
    centroids = np.tile(mixture(5, 11, 5, 1.0), (9, 1))
    assert nearest(centroids)(mixture(200, 11, 5, 1.0)).max() < 5


def test_all_scores_below_zero_name_a_real_centroid(small_tiles):
    points = -unit_rows(np.ones((40, 11)))
    assert nearest(unit_rows(np.ones((3, 11))))(points).tolist() == [0] * 40


def one_device():
    return jax.make_mesh((1,), ("data",), devices=jax.local_devices()[:1])


def test_eight_devices_give_the_centroids_of_one(small_tiles, monkeypatch):
    points, settings = mixture(1501, 12, 30, 0.8), ClustersConfig(niter=6, nredo=2)
    eight = train(points, 21, settings, 1)
    ids = nearest(eight)(points)
    monkeypatch.setattr(jax_kmeans, "local_mesh", one_device)
    np.testing.assert_allclose(train(points, 21, settings, 1), eight, atol=1e-5)
    np.testing.assert_array_equal(nearest(eight)(points), ids)


def test_rows_that_fill_up_tiles_count_nowhere(small_tiles):
    points, mesh = mixture(1003, 11, 30, 1.0), jax_kmeans.local_mesh()
    tiles = jax_kmeans._to_tiles(points, mesh)
    columns = jax_kmeans._to_columns(points[:21], mesh)
    _, counts, scores = jax_kmeans._iterate(mesh, tiles, *columns)
    expected = points.astype(np.float64) @ points[:21].T.astype(np.float64)
    ids = np.bincount(expected.argmax(axis=1), minlength=len(counts))
    np.testing.assert_array_equal(counts, ids)
    assert scores.sum() == pytest.approx(expected.max(axis=1).sum(), rel=1e-5)


def compiled(points, k) -> Any:
    mesh = jax_kmeans.local_mesh()
    tiles = jax_kmeans._to_tiles(points, mesh)
    columns = jax_kmeans._to_columns(points[:k], mesh)
    return jax_kmeans._iterate.lower(mesh, tiles, *columns).compile().as_text()


def test_an_iteration_sums_over_devices_once_and_holds_no_full_matrix(small_tiles):
    text = compiled(mixture(4096, 13, 30, 1.0), 64)
    entry = text[text.index("ENTRY") :]  # not in the loops' bodies before it
    for part in (text, entry):  # sums and counts
        assert len(re.findall(r"= .* all-reduce(?:-start)?\(", part)) == 2
    assert "all-gather" not in text
    assert "f32[32,16]" in text  # a tile of scores
    assert not re.search(r"f32\[(\d+,)?(512|4096|32),64\]", text)


def test_domains_of_many_sizes_share_compilations():
    settings = ClustersConfig(niter=1, nredo=1)
    iterate: Any = jax_kmeans._iterate
    before = iterate._cache_size()
    for rows, k in [(530, 33), (601, 40), (777, 64), (1024, 50)]:
        train(mixture(rows, 17, 30, 1.0), k, settings, 0)
    assert iterate._cache_size() == before + 1
