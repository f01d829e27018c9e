import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from cdejax.clustering.groups import group_domains
from cdejax.clustering.kmeans import Clusters, clusters_stage
from cdejax.clustering.plan import Plan, make_groups, plan_stage
from cdejax.clustering.vectors import vectors_stage
from cdejax.config import ClustersConfig, Config, PlanConfig, VectorsConfig
from cdejax.data.pairs import Pairs
from cdejax.storage.artifacts import artifact_fingerprint, read_manifest

BASE = Config(
    vectors=VectorsConfig(dim=16),
    clusters=ClustersConfig(cluster_size=6),
    plan=PlanConfig(batch_size=10, epochs=3, min_domain="drop"),
)


def with_plan(**changes):
    return replace(BASE, plan=replace(BASE.plan, **changes))


@pytest.fixture(scope="module")
def clusters_folder(tmp_path_factory, pairs_folder):
    root = tmp_path_factory.mktemp("artifacts")
    vectors = vectors_stage(BASE, root, pairs_folder)
    return clusters_stage(BASE, root, pairs_folder, vectors)


@pytest.fixture
def domain(pairs_folder):
    pairs = Pairs.open(pairs_folder)
    return np.array(pairs.domains)[pairs.train.domain]


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


@pytest.mark.parametrize("order", ["tsp_greedy", "random"])
def test_clustered_plan(tmp_path, pairs_folder, clusters_folder, domain, order):
    config = with_plan(order=order)
    folder = plan_stage(config, tmp_path, pairs_folder, clusters_folder)
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


def test_rows_of_a_step_are_of_its_epoch_file(tmp_path, pairs_folder):
    folder = plan_stage(with_plan(kind="by_domain"), tmp_path, pairs_folder)
    plan = Plan.open(folder)
    second = np.load(folder / "epoch-0001.npy")
    assert second.dtype == np.int32
    np.testing.assert_array_equal(plan.rows(11), second[0])
    np.testing.assert_array_equal(plan.rows(21), second[-1])
    for step in (-1, 33):
        with pytest.raises(IndexError, match=f"step {step} of a plan of 33 steps"):
            plan.rows(step)


def test_shuffled_plan_mixes_domains_and_drops_the_rest_only(
    tmp_path, pairs_folder, domain
):
    config = with_plan(kind="shuffled", min_domain="error")
    plan = Plan.open(plan_stage(config, tmp_path, pairs_folder))
    assert plan.total_steps == 36
    batches = [plan.rows(step) for step in range(36)]
    assert len(np.unique(batches[:12])) == 120
    assert np.mean([len(np.unique(domain[rows])) for rows in batches]) > 1.5


def test_plans_of_other_seeds_clusters_or_settings_are_other_artefacts(
    tmp_path, pairs_folder, clusters_folder
):
    folders = {
        plan_stage(config, tmp_path, pairs_folder, clusters_folder)
        for config in (BASE, replace(BASE, seed=1), with_plan(order="random"))
    }
    assert len(folders) == 3
    assert plan_stage(BASE, tmp_path, pairs_folder, clusters_folder) in folders


def test_grouped_domains_share_batches(tmp_path, pairs_folder, clusters_folder, domain):
    groups = {"nature": ("birds", "too*")}
    config = with_plan(domain_groups=groups, min_domain="error", batch_size=17)
    folder = plan_stage(config, tmp_path, pairs_folder, clusters_folder)
    counts = read_manifest(folder)["counts"]
    assert counts["domains"]["nature"] == {"rows": 51, "dropped": [0, 0, 0]}
    plan = Plan.open(folder)
    used = np.concatenate([plan.rows(step) for step in range(7)])
    assert (domain[used] == "tools").sum() == 6


def test_group_numbers_and_names():
    names, numbers = group_domains(
        ["deb-x", "web", "deb-y"], {"deb": ("deb-*",), "all": ()}
    )
    assert names == ["deb", "web"]
    assert numbers.tolist() == [0, 1, 0]


BAD_GROUPS = {
    "unknown domain": ({"a": ("wbe",)}, r"'wbe' matches no domain; did you mean 'web'"),
    "no match of pattern": ({"a": ("film*",)}, r"'film\*' matches no domain"),
    "in two groups": ({"a": ("web",), "b": ("w*",)}, "'web' is in 'a' and in 'b'"),
    "name of another domain": ({"law": ("web",)}, "'law' is also a domain"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_bad_groups(case):
    groups, message = BAD_GROUPS[case]
    with pytest.raises(ValueError, match=message):
        group_domains(["web", "law"], groups)


def test_domains_smaller_than_a_batch_name_the_ways_out(tmp_path, pairs_folder):
    config = with_plan(kind="by_domain", min_domain="error", batch_size=50)
    message = (
        r"2 domains are smaller than a batch of 50: 'birds' \(45 rows\), 'tools' "
        r"\(6 rows\).*domain_groups.*batch_size.*min_domain: drop"
    )
    with pytest.raises(ValueError, match=message):
        plan_stage(config, tmp_path, pairs_folder)


@pytest.mark.parametrize("kind", ["by_domain", "shuffled"])
def test_a_batch_larger_than_everything(tmp_path, pairs_folder, kind):
    config = with_plan(kind=kind, batch_size=200)
    with pytest.raises(ValueError, match=r"no domain has the 200|more than the 121"):
        plan_stage(config, tmp_path, pairs_folder)


def test_domains_without_training_rows_are_no_error():
    settings = PlanConfig(kind="by_domain", batch_size=2)
    group = np.array([1, 1, 1])
    groups = make_groups(group, ["only-heldout", "web"], settings)
    assert [g.name for g in groups] == ["web"]


def test_a_clustered_plan_needs_clusters(tmp_path, pairs_folder):
    with pytest.raises(ValueError, match="needs a clusters artefact"):
        plan_stage(BASE, tmp_path, pairs_folder)


def test_artefacts_of_other_pairs_do_not_mix(tmp_path, pairs_folder, clusters_folder):
    from tests.clustering.conftest import rows, write_pairs

    other = write_pairs(tmp_path, list(rows())[:60])
    with pytest.raises(ValueError, match=r"clusters-.* made for another corpus"):
        plan_stage(BASE, tmp_path, other, clusters_folder)
    vectors = vectors_stage(BASE, tmp_path, pairs_folder)
    with pytest.raises(ValueError, match=r"vectors-.* made for another corpus"):
        clusters_stage(BASE, tmp_path, other, vectors)


def test_a_plan_of_other_pairs_is_refused_on_opening(tmp_path, pairs_folder):
    folder = plan_stage(with_plan(kind="by_domain"), tmp_path, pairs_folder)
    with pytest.raises(ValueError, match=r"made for pairs .*, not for feedfeed"):
        Plan.open(folder, "feedfeed")


def test_a_folder_that_is_no_plan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a finished artefact"):
        Plan.open(tmp_path)


# A user's own plan ------------------------------------------------------------


@pytest.fixture
def good(domain):
    """One epoch of 5 batches of 8 rows, each of one domain."""
    birds, stars = np.flatnonzero(domain == "birds"), np.flatnonzero(domain == "stars")
    return np.concatenate([birds[:16].reshape(2, 8), stars[:24].reshape(3, 8)])


def user(path, epochs=1, **changes):
    return with_plan(
        kind="file", path=str(path), batch_size=8, epochs=epochs, **changes
    )


def test_a_file_is_one_epoch(tmp_path, pairs_folder, good):
    path = tmp_path / "plan.npy"
    np.save(path, good.astype(np.uint16))
    folder = plan_stage(user(path), tmp_path, pairs_folder)
    plan = Plan.open(folder)
    np.testing.assert_array_equal([plan.rows(step) for step in range(5)], good)
    assert plan.rows(0).dtype == np.int32
    counts = read_manifest(folder)["counts"]
    assert counts["domains"]["birds"] == {"rows": 45, "dropped": [29]}


def test_a_folder_holds_epochs_and_a_plan_artefact_is_one(
    tmp_path, pairs_folder, clusters_folder
):
    ours = plan_stage(BASE, tmp_path, pairs_folder, clusters_folder)
    config = with_plan(kind="file", path=str(ours))
    again = plan_stage(config, tmp_path, pairs_folder)
    for step in (0, 11, 32):
        np.testing.assert_array_equal(
            Plan.open(again).rows(step), Plan.open(ours).rows(step)
        )


def test_domains_may_be_mixed_on_purpose(tmp_path, pairs_folder, good):
    path = tmp_path / "plan.npy"
    np.save(path, good.T.reshape(5, 8))
    config = user(path, domain_groups={"all": ("*",)})
    assert Plan.open(plan_stage(config, tmp_path, pairs_folder)).total_steps == 5


def changed(change):
    def spoil(path, good):
        np.save(path, change(good.copy()), allow_pickle=True)

    return spoil


def put(place, value):
    def change(x):
        x[place] = value
        return x

    return changed(change)


def beside(name, content):
    def spoil(path, good):
        np.save(path, good)
        path.with_name(name).write_text(json.dumps(content))

    return spoil


def repeat(x):
    x[1, 3] = x[0, 0]
    return x


BAD_PLANS = {
    "missing": (lambda path, good: None, "no such file or folder"),
    "not npy": (lambda path, good: path.write_text("[[0, 1]]"), "not a .npy file"),
    "pickled": (changed(lambda x: x.astype(object)), "pickled objects"),
    "unknown row": (
        put((2, 5), 121),
        "epoch 0, step 2 names row 121; the training pairs are rows 0 to 120",
    ),
    "negative row": (put((0, 1), -1), "step 0 names row -1"),
    "repeated row": (changed(repeat), r"2 times \(steps \[0, 1\]\)"),
    "mixed domain": (
        changed(lambda x: x.T.reshape(5, 8)),
        "step 0 mixes the domains 'birds', 'stars'.*domain_groups",
    ),
    "floats": (changed(lambda x: x.astype(float)), "dtype float64"),
    "one dimension": (changed(lambda x: x.ravel()), r"shape \(40,\)"),
    "empty": (changed(lambda x: x[:0]), r"shape \(0, 8\)"),
    "another batch size": (
        changed(lambda x: x[:, :4]),
        "batches of 4 rows, but plan.batch_size is 8",
    ),
    "another token store": (
        beside("plan.npy.json", {"pairs": "feedfeed"}),
        "made for another corpus",
    ),
    "another artefact": (
        beside("manifest.json", {"spec": {"pairs": "feedfeed"}}),
        "made for another corpus",
    ),
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_bad_plans(tmp_path, pairs_folder, good, case):
    spoil, message = BAD_PLANS[case]
    path = tmp_path / "plan.npy"
    spoil(path, good)
    with pytest.raises(ValueError, match=message):
        plan_stage(user(path), tmp_path / "artifacts", pairs_folder)


def test_epochs_must_be_as_many_as_configured(tmp_path, pairs_folder, good):
    np.save(tmp_path / "epoch-0000.npy", good)
    with pytest.raises(ValueError, match=r"1 epochs .* but plan.epochs is 2"):
        plan_stage(user(tmp_path, epochs=2), tmp_path / "artifacts", pairs_folder)
    shutil.copy(tmp_path / "epoch-0000.npy", tmp_path / "epoch-0001.npy")
    folder = plan_stage(user(tmp_path, epochs=2), tmp_path / "artifacts", pairs_folder)
    assert Plan.open(folder).total_steps == 10
