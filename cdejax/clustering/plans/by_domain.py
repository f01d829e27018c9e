"""`plan.kind: by_domain`: random batches, each within a domain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.plans.packed import PackedPlanner


@dataclass(frozen=True)
class ByDomain(PackedPlanner):
    """Packs batches from each domain group separately."""

    def sets(self, pairs: TrainingPairs) -> list[tuple[str, Int[np.ndarray, "rows"]]]:
        """The rows of each group with enough rows for a batch (see `check_sizes`)."""
        return pairs.filling(self.settings.batch_size, self.settings.min_domain)
