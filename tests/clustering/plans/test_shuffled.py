import numpy as np
import pytest

from cdejax.clustering.plan import Plan, plan_stage
from tests.clustering.conftest import with_plan


def test_shuffled_plan_mixes_domains_and_drops_the_rest_only(
    tmp_path, pairs_folder, domain
):
    config = with_plan(kind="shuffled", min_domain="error")
    plan = Plan.open(plan_stage(config, tmp_path, pairs_folder))
    assert plan.total_steps == 36
    batches = [plan.rows(step) for step in range(36)]
    assert len(np.unique(batches[:12])) == 120
    assert np.mean([len(np.unique(domain[rows])) for rows in batches]) > 1.5


def test_a_batch_larger_than_everything(tmp_path, pairs_folder):
    config = with_plan(kind="shuffled", batch_size=200)
    with pytest.raises(ValueError, match="more than the 121"):
        plan_stage(config, tmp_path, pairs_folder)
