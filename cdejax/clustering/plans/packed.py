"""Base class of the planners that pack sets of pairs into batches."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32

from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.packing import Group, pack_epoch
from cdejax.clustering.plans.base import Need, Planner
from cdejax.runtime.progress import progress


@dataclass(frozen=True)
class PackedPlanner(Planner):
    """Draws every batch from a single set of pairs, differently in every epoch."""

    @abc.abstractmethod
    def sets(
        self, pairs: TrainingPairs
    ) -> Sequence[tuple[str, Int[np.ndarray, "rows"]]]:
        """Names and rows of the sets, each at least as large as a batch.

        Raises:
          ValueError: the pairs do not fill a batch.
        """

    def groups(
        self, pairs: TrainingPairs, folders: Mapping[Need, Path]
    ) -> Sequence[Group]:
        """The sets as they are packed: simply shuffled, unless overridden."""
        return [Group.whole(name, rows) for name, rows in self.sets(pairs)]

    def count_steps(self, pairs: TrainingPairs) -> int:
        """Number of full batches of all sets and epochs."""
        batch = self.settings.batch_size
        whole = sum(len(rows) // batch for _, rows in self.sets(pairs))
        return self.settings.epochs * whole

    def epochs(
        self, pairs: TrainingPairs, folders: Mapping[Need, Path], seed: int
    ) -> Iterator[Int32[np.ndarray, "steps batch"]]:
        """Packs one epoch after another (see `pack_epoch`)."""
        groups, epochs = self.groups(pairs, folders), self.settings.epochs
        with progress("pack epochs", epochs) as advance:
            for epoch in range(epochs):
                yield pack_epoch(groups, self.settings.batch_size, seed, epoch)
                advance(1)
