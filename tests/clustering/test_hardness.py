import json

import numpy as np
import pytest

from cdejax.clustering.hardness import (
    PairArrays,
    batch_hardness,
    batches_report,
    clusters_report,
    hardness_report,
    mean_cosine,
)
from cdejax.clustering.kmeans import Clusters, clusters_stage
from cdejax.clustering.plan import Plan, plan_stage
from cdejax.clustering.vectors import Vectors, unit_rows, vectors_stage
from cdejax.config import ClustersConfig, Config, PlanConfig, VectorsConfig
from cdejax.data.known_positives import KnownPositives
from cdejax.data.pairs import Pairs
from cdejax.storage.artifacts import read_manifest


def arrays(
    q, d, group=None, query_content=None, document_content=None, answers=((), ())
):
    """Pairs whose texts all differ, unless ids are given; further known answers."""
    rows = np.arange(len(q))
    query = rows if query_content is None else np.array(query_content)
    document = 1000 + rows if document_content is None else np.array(document_content)
    pairs = np.concatenate([[query, document], np.array(answers, int)], axis=1)
    return PairArrays(
        unit_rows(q),
        unit_rows(d),
        rows,
        rows,
        query,
        document,
        np.zeros(len(q), int) if group is None else group,
        KnownPositives.of(*pairs),
    )


def brute_force(a, rows, margin, answers):
    """The figures of a batch, cell by cell."""
    pairs = {(a.query_content[i], a.document_content[i]) for i in range(len(a.query))}
    pairs |= set(zip(*answers, strict=True))
    hits = masked = cells = same = 0
    for i in rows:
        q = a.queries[a.query[i]]
        own = q @ a.documents[a.document[i]]
        best = True
        for j in rows:
            if i == j:
                continue
            score = q @ a.documents[a.document[j]]
            query = a.query_content[a.query[i]]
            document = a.document_content[a.document[j]]
            if (query, document) in pairs or query == document:
                same += 1
                continue
            cells += 1
            masked += score >= own + margin
            best &= score < own
        hits += best
    n = len(rows)
    return {
        "top1": hits / n,
        "masked": masked / cells,
        "duplicates": same / (n * (n - 1)),
    }


@pytest.mark.parametrize("margin", [-0.1, 0.0, 0.2])
def test_figures_of_a_batch(margin):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(40, 6))
    answers = rng.integers(0, 25, 15), rng.integers(10, 40, 15)
    a = arrays(
        q,
        q + 1.2 * rng.normal(size=q.shape),
        query_content=rng.integers(0, 25, 40),
        document_content=rng.integers(10, 40, 40),
        answers=answers,
    )
    rows = rng.permutation(40)[:24]
    ours = batch_hardness(a, rows, margin)
    assert ours == pytest.approx(brute_force(a, rows, margin, answers))
    assert 0 < ours["top1"] < 1
    assert ours["duplicates"] > 0


def test_ties_are_masked_and_no_hit():
    a = arrays(np.eye(3), np.eye(3)[[0, 0, 2]])
    figures = batch_hardness(a, np.arange(3), 0.0)
    # Row 0 ties with document 1; row 1 scores 0 everywhere; row 2 stands alone.
    assert figures == {"top1": 1 / 3, "masked": 3 / 6, "duplicates": 0}


def test_mean_cosine_is_that_of_all_pairs():
    rng = np.random.default_rng(1)
    x = unit_rows(rng.normal(size=(30, 5)))
    rows, ids = rng.integers(0, 30, 50), rng.integers(0, 7, 50)
    ids[0] = 9  # a set of one, left out
    total = weight = 0.0
    for i in range(9):
        inside = x[rows[ids == i]]
        n = len(inside)
        if n > 1:
            cosines = inside @ inside.T
            total += n * cosines[~np.eye(n, dtype=bool)].mean()
            weight += n
    assert mean_cosine(x, rows, ids) == pytest.approx(total / weight, abs=1e-6)


def test_clusters_are_described():
    rng = np.random.default_rng(2)
    cluster = np.array([0] * 10 + [1] * 30 + [2] * 20)
    directions = 3 * np.eye(8)[cluster]
    q = directions + rng.normal(size=(60, 8))
    report = clusters_report(arrays(q, directions), cluster)
    assert report["clusters"] == 3
    assert report["sizes"] == [10, 20, 30]
    assert report["size_quantiles"]["median"] == 20
    assert report["mean_cosine"]["documents"]["cluster"] == pytest.approx(1)
    assert report["mean_cosine"]["queries"]["cluster"] > 0.4
    same_domain = report["mean_cosine"]["documents"]["domain"]
    assert same_domain == report["mean_cosine"]["documents"]["all"] < 0.5


def test_hard_batches_are_told_from_random_ones():
    rng = np.random.default_rng(3)
    topic = np.repeat(np.arange(40), 16)
    q = 2 * np.eye(40)[topic] + 0.3 * rng.normal(size=(640, 40))
    d = q + 0.5 * rng.normal(size=q.shape)
    group = (topic >= 20).astype(int)
    a = arrays(q, d, group)
    hard = np.arange(640).reshape(40, 16)
    report = batches_report(a, hard, ["x", "y"], 0.0, 0)
    assert report["planned"]["top1"] < report["random_in_domain"]["top1"]
    assert report["planned"]["masked"] > report["random_in_domain"]["masked"]
    assert set(report["domains"]) == {"x", "y"}
    assert report["domains"]["x"]["steps"] == 20
    assert report == batches_report(a, hard, ["x", "y"], 0.0, 0)
    mixed = rng.permutation(640).reshape(40, 16)
    assert set(batches_report(a, mixed, ["x", "y"], 0.0, 0)["domains"]) == {"mixed"}


def test_domains_count_by_their_steps(monkeypatch):
    monkeypatch.setattr(
        "cdejax.clustering.hardness.batch_hardness",
        lambda a, rows, margin: {"top1": float(a.group[rows[0]])},
    )
    group = np.repeat([0, 1], [90, 30])
    a = arrays(np.ones((120, 2)), np.ones((120, 2)), group)
    report = batches_report(a, np.arange(120).reshape(40, 3), ["x", "y"], 0.0, 0)
    assert report["planned"]["top1"] == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["clustered", "shuffled"])
def test_report_files(tmp_path, pairs_folder, kind):
    config = Config(
        vectors=VectorsConfig(dim=16),
        clusters=ClustersConfig(cluster_size=6),
        plan=PlanConfig(kind=kind, batch_size=10, min_domain="drop"),
    )
    vectors = vectors_stage(config, tmp_path, pairs_folder)
    clusters = clusters_stage(config, tmp_path, pairs_folder, vectors)
    plan = plan_stage(config, tmp_path, pairs_folder, {"clusters": clusters})
    numbers = hardness_report(
        config,
        Pairs.open(pairs_folder),
        Vectors.open(vectors),
        Clusters.open(clusters) if kind == "clustered" else None,
        Plan.open(plan),
        tmp_path / "report",
    )
    stored = json.loads((tmp_path / "report" / "hardness.json").read_text())
    assert stored == json.loads(json.dumps(numbers))
    assert stored["steps"] == read_manifest(plan)["counts"]["steps"][0]
    assert stored["batch_size"] == 10
    png = (tmp_path / "report" / "hardness.png").read_bytes()
    assert png[:4] == b"\x89PNG"
    assert len(png) > 20_000
