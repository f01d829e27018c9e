from dataclasses import replace

import numpy as np
import pytest

from cdejax.clustering.plan import Plan, plan_stage
from tests.clustering.conftest import BASE, with_plan


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


def test_plans_of_other_seeds_clusters_or_settings_are_other_artefacts(
    tmp_path, pairs_folder, clusters_folder
):
    folders = {
        plan_stage(config, tmp_path, pairs_folder, {"clusters": clusters_folder})
        for config in (BASE, replace(BASE, seed=1), with_plan(order="random"))
    }
    assert len(folders) == 3
    assert (
        plan_stage(BASE, tmp_path, pairs_folder, {"clusters": clusters_folder})
        in folders
    )


def test_a_plan_of_other_pairs_is_refused_on_opening(tmp_path, pairs_folder):
    folder = plan_stage(with_plan(kind="by_domain"), tmp_path, pairs_folder)
    with pytest.raises(ValueError, match=r"made for pairs .*, not for feedfeed"):
        Plan.open(folder, "feedfeed")


def test_a_folder_that_is_no_plan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a finished artefact"):
        Plan.open(tmp_path)
