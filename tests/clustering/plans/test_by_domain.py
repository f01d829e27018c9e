import pytest

from cdejax.clustering.plan import plan_stage
from tests.clustering.conftest import with_plan


def test_domains_smaller_than_a_batch_name_the_ways_out(tmp_path, pairs_folder):
    config = with_plan(kind="by_domain", min_domain="error", batch_size=50)
    message = (
        r"2 domains are smaller than a batch of 50: 'birds' \(45 rows\), 'tools' "
        r"\(6 rows\).*domain_groups.*batch_size.*min_domain: drop"
    )
    with pytest.raises(ValueError, match=message):
        plan_stage(config, tmp_path, pairs_folder)


def test_a_batch_larger_than_every_domain(tmp_path, pairs_folder):
    config = with_plan(kind="by_domain", batch_size=200)
    with pytest.raises(ValueError, match="no domain has the 200"):
        plan_stage(config, tmp_path, pairs_folder)
