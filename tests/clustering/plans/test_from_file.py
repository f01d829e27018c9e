import json
import shutil

import numpy as np
import pytest

from cdejax.clustering.plan import Plan, plan_stage
from cdejax.storage.artifacts import read_manifest
from tests.clustering.conftest import BASE, with_plan


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
    ours = plan_stage(BASE, tmp_path, pairs_folder, {"clusters": clusters_folder})
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
