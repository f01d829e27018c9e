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
    """Packs batches from each domain group separately, cluster by cluster."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The clusters artefact."""
        return ("clusters",)

    def groups(self, pairs: TrainingPairs, folders: Mapping[Need, Path]) -> list[Group]:
        """The domain groups with their clusters, in `plan.order`."""
        clusters, order = Clusters.open(folders["clusters"]), self.settings.order
        return [
            Group.clustered(
                name, rows, clusters.cluster[rows], clusters.centroid, order
            )
            for name, rows in self.sets(pairs)
        ]
