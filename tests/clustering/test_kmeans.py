import contextlib
import subprocess
import sys

import numpy as np
import pytest

from cdejax.clustering import faiss_kmeans, jax_kmeans
from cdejax.clustering.kmeans import (
    Clusters,
    Points,
    assign,
    backend_of,
    cluster_means,
    cluster_pairs,
    cluster_points,
    clusters_stage,
    hash_rows,
)
from cdejax.clustering.vectors import unit_rows
from cdejax.config import ClustersConfig
from cdejax.data.pairs import Pairs
from cdejax.runtime import platforms
from cdejax.storage.artifacts import read_manifest
from tests.clustering.conftest import BASE, rows, write_pairs


def blobs(count, rows, dim, spread, seed=0):
    """Unit vectors round `count` orthogonal directions, and their labels."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.repeat(np.arange(count), rows))
    return unit_rows(
        np.eye(dim)[label] + spread * rng.normal(size=(len(label), dim))
    ), (label)


def one_to_one(rows):
    return np.stack([np.arange(rows)] * 2, axis=1)


def same_partition(a, b):
    joint = len(np.unique(np.stack([a, b]), axis=1).T)
    return joint == len(np.unique(a)) == len(np.unique(b))


@pytest.mark.parametrize("backend", ["faiss", "jax"])
@pytest.mark.parametrize("kind", ["paired", "query", "document", "concat"])
def test_separate_blobs_are_recovered(kind, backend):
    q, label = blobs(6, 40, 16, 0.02)
    d, _ = blobs(6, 40, 16, 0.02)  # the same labels: one seed
    settings = ClustersConfig(vectors=kind, k=6, backend=backend)
    points = Points(q, d, one_to_one(len(q)), kind)
    ids, counts = cluster_points(points, "web", settings, seed=3)
    assert same_partition(ids, label)
    assert counts["clusters"] == 6
    assert counts["largest"] == 40


@pytest.mark.parametrize("backend", [faiss_kmeans, jax_kmeans])
def test_assignment_is_the_nearest_centroid_in_float64(backend):
    rng = np.random.default_rng(1)
    q, d = (unit_rows(rng.normal(size=(3000, 12))) for _ in range(2))
    points = Points(q, d, one_to_one(3000), "paired")
    rows = np.arange(3000)
    centroids = backend.train(points(rows), 50, ClustersConfig(niter=5), seed=0)
    np.testing.assert_allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
    exact = np.concatenate([q, d], 1).astype(np.float64) / np.sqrt(2)
    scores = exact @ centroids.T.astype(np.float64)
    chosen = scores[rows, assign(points, backend.nearest(centroids))]
    np.testing.assert_allclose(chosen, scores.max(axis=1), atol=1e-6)


def test_swapped_points_put_the_document_first():
    q, d = np.eye(4, dtype=np.float32)[:2], np.eye(4, dtype=np.float32)[2:]
    points = Points(q, d, np.array([[0, 1]]), "paired")
    expected = np.concatenate([q[0], d[1]]) / np.sqrt(2)
    np.testing.assert_allclose(points(np.array([0]))[0], expected, atol=1e-7)
    swapped = points(np.array([0]), swapped=True)[0]
    np.testing.assert_allclose(swapped, np.roll(expected, 4), atol=1e-7)


def test_equal_seeds_give_equal_clusters_and_others_differ():
    rng = np.random.default_rng(2)
    q, d = (unit_rows(rng.normal(size=(1500, 16))) for _ in range(2))
    settings = ClustersConfig(cluster_size=30, niter=10)

    def run(seed):
        domain = np.zeros(1500, int)
        return cluster_pairs(q, d, one_to_one(1500), domain, ["a"], settings, seed)[0]

    np.testing.assert_array_equal(run(0).cluster, run(0).cluster)
    np.testing.assert_array_equal(run(0).centroid, run(0).centroid)
    assert not same_partition(run(0).cluster, run(1).cluster)


def test_devices_compute_where_they_are_accelerators(monkeypatch):
    assert backend_of(ClustersConfig()) is faiss_kmeans
    assert backend_of(ClustersConfig(backend="jax")) is jax_kmeans
    monkeypatch.setattr(platforms, "platform", lambda mesh: "gpu")
    assert backend_of(ClustersConfig()) is jax_kmeans
    assert backend_of(ClustersConfig(backend="faiss")) is faiss_kmeans


WITHOUT_FAISS = """
import sys
import numpy as np
from cdejax.clustering.kmeans import cluster_pairs
from cdejax.config import ClustersConfig
x = np.eye(8, dtype=np.float32)
rows = np.stack([np.arange(8)] * 2, axis=1)
settings = ClustersConfig(k=2, backend="jax")
_, counts = cluster_pairs(x, x, rows, np.zeros(8, int), ["a"], settings, 0)
print(counts["backend"], "faiss" in sys.modules)
"""


def test_devices_need_no_faiss():
    command = [sys.executable, "-c", WITHOUT_FAISS]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.stdout.split() == ["jax", "False"], out.stderr


@pytest.mark.parametrize("backend", ["faiss", "jax"])
def test_the_bar_ends_full_whatever_the_backend_tells(backend, monkeypatch):
    rng = np.random.default_rng(8)
    q = unit_rows(rng.normal(size=(90, 8)))
    domain = np.repeat([0, 1], [50, 40])
    seen = []

    @contextlib.contextmanager
    def progress(label, total):
        seen.append(total)
        yield lambda count: seen.append(-count)

    monkeypatch.setattr("cdejax.clustering.kmeans.progress", progress)
    settings = ClustersConfig(k=3, niter=20, nredo=2, backend=backend)
    cluster_pairs(q, q, one_to_one(90), domain, ["a", "b"], settings, 0)
    assert seen[0] == 90 * 40
    assert sum(seen) == 0
    assert len(seen) == 3 if backend == "faiss" else len(seen) > 20


def test_empty_clusters_are_dropped_and_reported():
    # Queries and documents live in different halves of the space, so that the [d;q]
    # points keep centroids which no [q;d] point chooses.
    rng = np.random.default_rng(3)
    q = np.pad(rng.normal(size=(400, 8)), ((0, 0), (0, 8)))
    d = np.pad(rng.normal(size=(400, 8)), ((0, 0), (8, 0)))
    points = Points(unit_rows(q), unit_rows(d), one_to_one(400), "paired")
    ids, counts = cluster_points(points, "web", ClustersConfig(k=40), seed=0)
    assert counts["k_asked"] == 40
    assert 0 < counts["empty"] == 40 - counts["clusters"]
    np.testing.assert_array_equal(np.unique(ids), np.arange(counts["clusters"]))


def test_duplicates_are_collapsed_before_training():
    q, _ = blobs(4, 5, 8, 0.05)
    rows = np.concatenate([one_to_one(20), np.full((1000, 2), 3)])
    points = Points(q, q[::-1].copy(), rows, "paired")
    _, counts = cluster_points(points, "web", ClustersConfig(k=4), seed=0)
    assert counts["rows"] == 1020
    assert counts["distinct_rows"] == 20
    assert counts["training_points"] == 40


def test_both_orders_of_an_equal_query_and_document_count_once():
    q, _ = blobs(4, 5, 8, 0.05)
    points = Points(q, q, one_to_one(20), "paired")
    _, counts = cluster_points(points, "web", ClustersConfig(k=2), seed=0)
    assert counts["training_points"] == 20


def test_training_points_are_sampled_to_the_limit_without_a_word(capfd):
    rng = np.random.default_rng(4)
    q, d = (unit_rows(rng.normal(size=(500, 8))) for _ in range(2))
    settings = ClustersConfig(k=4, points_per_centroid=20)
    points = Points(q, d, one_to_one(500), "paired")
    ids, counts = cluster_points(points, "web", settings, 0)
    assert counts["training_points"] == 80
    assert counts["points_per_centroid"] == 20
    assert len(ids) == 500
    cluster_points(points, "web", ClustersConfig(k=450), 0)  # 2.2 points a centroid
    assert "WARNING" not in "".join(capfd.readouterr())


def test_clusters_stay_within_domains_and_centroids_are_document_means():
    rng = np.random.default_rng(5)
    q, d = (unit_rows(rng.normal(size=(300, 8))) for _ in range(2))
    pairs = np.stack([np.arange(300), rng.permutation(300)], axis=1)
    domain = rng.integers(0, 3, 300)
    settings = ClustersConfig(cluster_size=20)
    names = ["a", "b", "c"]
    clusters, counts = cluster_pairs(q, d, pairs, domain, names, settings, 0)
    np.testing.assert_array_equal(clusters.cluster_domain[clusters.cluster], domain)
    assert clusters.cluster.dtype == clusters.cluster_domain.dtype == np.int32
    total = len(clusters.centroid)
    np.testing.assert_array_equal(np.unique(clusters.cluster), np.arange(total))
    assert counts["clusters"] == total
    assert counts["rows"] == 300
    for i in range(total):
        mean = d[pairs[clusters.cluster == i, 1]].mean(axis=0)
        np.testing.assert_allclose(clusters.centroid[i], mean, atol=1e-6)


def test_svd_is_fitted_on_queries_and_normalised():
    rng = np.random.default_rng(6)
    basis = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    q = unit_rows(rng.normal(size=(200, 3)) @ basis[:3])
    d = unit_rows(q + 0.5 * basis[5])
    seen = []

    def watch(points, name, settings, seed, advance):
        seen.append(points(np.arange(5)))
        return np.zeros(200, np.int32), {
            "rows": 200,
            "k_asked": 1,
            "clusters": 1,
            "training_points": 1,
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdejax.clustering.kmeans.cluster_points", watch)
        settings = ClustersConfig(svd_dim=3)
        domain = np.zeros(200, int)
        cluster_pairs(q, d, one_to_one(200), domain, ["a"], settings, 0)
    assert seen[0].shape == (5, 6)
    # What lies outside the queries' space is gone: both halves are the query.
    np.testing.assert_allclose(seen[0][:, :3], seen[0][:, 3:], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(seen[0], axis=1), 1, atol=1e-6)


def test_hashes_tell_rows_apart():
    rng = np.random.default_rng(7)
    x = rng.integers(0, 3, (5000, 6)).astype(np.float32)
    hashes = hash_rows(x, np.arange(5000))
    assert len(np.unique(hashes)) == len(np.unique(x, axis=0))


def test_means_of_clusters():
    x = np.array([[1.0, 0], [3, 0], [0, 5]], np.float32)
    means = cluster_means(x, np.array([0, 1, 2, 2]), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(means, [[2, 0], [0, 5]])


def test_svd_of_too_many_dimensions_is_refused():
    q, _ = blobs(2, 5, 4, 0.1)
    settings = ClustersConfig(svd_dim=5)
    with pytest.raises(ValueError, match=r"svd_dim: 5, but 10 query vectors of 4"):
        cluster_pairs(q, q, one_to_one(10), np.zeros(10, int), ["a"], settings, 0)


def test_too_few_distinct_points_name_the_domain_the_number_and_the_way_out():
    q, _ = blobs(2, 2, 8, 0.05)
    points = Points(q, q, np.zeros((50, 2), int), "query")
    message = r"'films' has 1 distinct points in 50 rows.*k = 2.*Lower clusters\.k"
    with pytest.raises(ValueError, match=message):
        cluster_points(points, "films", ClustersConfig(k=2), 0)


@pytest.mark.parametrize(("side", "bad"), [("query", np.nan), ("document", np.inf)])
def test_vectors_that_are_no_numbers_are_refused(side, bad):
    q, _ = blobs(2, 5, 8, 0.05)
    tables = {"query": q.copy(), "document": q.copy()}
    tables[side][4, 2] = bad
    points = Points(tables["query"], tables["document"], one_to_one(10), "paired")
    with pytest.raises(ValueError, match=f"{side} vector 4 holds NaN"):
        cluster_points(points, "web", ClustersConfig(k=2), 0)


def test_clusters_cover_the_training_pairs(pairs_folder, clusters_folder, domain):
    clusters = Clusters.open(clusters_folder)
    assert len(clusters.cluster) == len(domain) == 121
    counts = read_manifest(clusters_folder)["counts"]
    assert counts["domains"]["tools"]["k_asked"] == 1
    assert counts["domains"]["stars"]["k_asked"] == 12
    assert counts["clusters"] == len(clusters.centroid) == counts["clusters"]
    names = np.array(Pairs.open(pairs_folder).domains)
    np.testing.assert_array_equal(
        names[clusters.cluster_domain[clusters.cluster]], domain
    )


def test_vectors_of_other_pairs_are_refused(tmp_path, vectors_folder):
    other = write_pairs(tmp_path, list(rows())[:60])
    with pytest.raises(ValueError, match=r"vectors-.* made for another corpus"):
        clusters_stage(BASE, tmp_path, other, vectors_folder)
