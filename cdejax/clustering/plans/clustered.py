"""`plan.kind: clustered`: batches of neighbouring clusters, each within a domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.kmeans import Clusters
from cdejax.clustering.packing import Group
from cdejax.clustering.plans.base import Need
from cdejax.clustering.plans.by_domain import ByDomain


@dataclass(frozen=True)
class Clustered(ByDomain):
    """Each domain group is a set, laid out cluster by cluster."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The clusters."""
        return ("clusters",)

    def groups(self, pairs: TrainingPairs, folders: Mapping[Need, Path]) -> list[Group]:
        """The sets with their clusters, in `plan.order`."""
        clusters, order = Clusters.open(folders["clusters"]), self.settings.order
        return [
            Group.clustered(
                name, rows, clusters.cluster[rows], clusters.centroid, order
            )
            for name, rows in self.sets(pairs)
        ]
