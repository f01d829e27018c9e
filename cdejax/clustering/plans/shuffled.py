"""`plan.kind: shuffled`: random batches over all domains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.plans.packed import PackedPlanner


@dataclass(frozen=True)
class Shuffled(PackedPlanner):
    """Packs batches from all pairs as one set."""

    @property
    def mixes_domains(self) -> bool:
        """True: domains are ignored."""
        return True

    def sets(self, pairs: TrainingPairs) -> list[tuple[str, Int[np.ndarray, "rows"]]]:
        """One set of all rows; ValueError if there are fewer than a batch."""
        batch = self.settings.batch_size
        if len(pairs) < batch:
            raise ValueError(
                f"plan.batch_size: {batch} is more than the {len(pairs)} training "
                "pairs; lower it or bring more pairs."
            )
        return [("all", np.arange(len(pairs)))]
