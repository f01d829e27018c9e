"""All planners, by `plan.kind`."""

from __future__ import annotations

from cdejax.clustering.plans.base import Planner
from cdejax.clustering.plans.by_domain import ByDomain
from cdejax.clustering.plans.clustered import Clustered
from cdejax.clustering.plans.from_file import FromFile
from cdejax.clustering.plans.shuffled import Shuffled
from cdejax.config import PlanConfig

PLANNERS: dict[str, type[Planner]] = {
    "clustered": Clustered,
    "shuffled": Shuffled,
    "by_domain": ByDomain,
    "file": FromFile,
}
"""A new kind of plan needs an entry here and a value of `PlanConfig.kind`."""


def planner_of(settings: PlanConfig) -> Planner:
    """The planner of a recipe's `plan`."""
    return PLANNERS[settings.kind].of(settings, planner_of)
