import numpy as np
import pytest

from cdejax.clustering.kmeans import Clusters
from cdejax.clustering.plan import Plan, plan_stage
from cdejax.storage.artifacts import artifact_fingerprint, read_manifest
from tests.clustering.conftest import BASE, rows, with_plan, write_pairs


@pytest.mark.parametrize("order", ["tsp_greedy", "random"])
def test_clustered_plan(tmp_path, pairs_folder, clusters_folder, domain, order):
    config = with_plan(order=order)
    folder = plan_stage(config, tmp_path, pairs_folder, {"clusters": clusters_folder})
    plan = Plan.open(folder, artifact_fingerprint(pairs_folder))
    assert (plan.batch_size, plan.total_steps) == (10, 33)  # 3 x (4 + 7)
    batches = [plan.rows(step) for step in range(33)]
    assert all(len(np.unique(domain[rows])) == 1 for rows in batches)
    assert [plan.epoch_of(step) for step in (0, 10, 11, 32)] == [0, 0, 1, 2]
    counts = read_manifest(folder)["counts"]
    assert counts["cumulative_steps"] == [11, 22, 33]
    assert counts["domains"]["birds"] == {"rows": 45, "dropped": [5, 5, 5]}
    assert counts["domains"]["stars"] == {"rows": 70, "dropped": [0, 0, 0]}
    assert counts["domains"]["tools"] == {"rows": 6, "dropped": [6, 6, 6]}
    assert counts["domains_left_out"] == ["tools"]
    assert counts["dropped"] == [11, 11, 11]
    clusters = Clusters.open(clusters_folder).cluster
    spread = np.mean([len(np.unique(clusters[rows])) for rows in batches])
    by_domain = plan_stage(with_plan(kind="by_domain"), tmp_path, pairs_folder)
    plain = [Plan.open(by_domain).rows(step) for step in range(33)]
    assert spread < 0.7 * np.mean([len(np.unique(clusters[rows])) for rows in plain])


def test_grouped_domains_share_batches(tmp_path, pairs_folder, clusters_folder, domain):
    groups = {"nature": ("birds", "too*")}
    config = with_plan(domain_groups=groups, min_domain="error", batch_size=17)
    folder = plan_stage(config, tmp_path, pairs_folder, {"clusters": clusters_folder})
    counts = read_manifest(folder)["counts"]
    assert counts["domains"]["nature"] == {"rows": 51, "dropped": [0, 0, 0]}
    plan = Plan.open(folder)
    used = np.concatenate([plan.rows(step) for step in range(7)])
    assert (domain[used] == "tools").sum() == 6


def test_a_clustered_plan_needs_clusters(tmp_path, pairs_folder):
    with pytest.raises(ValueError, match="needs a clusters artefact"):
        plan_stage(BASE, tmp_path, pairs_folder)


def test_clusters_of_other_pairs_are_refused(tmp_path, clusters_folder):
    other = write_pairs(tmp_path, list(rows())[:60])
    with pytest.raises(ValueError, match=r"clusters-.* made for another corpus"):
        plan_stage(BASE, tmp_path, other, {"clusters": clusters_folder})
