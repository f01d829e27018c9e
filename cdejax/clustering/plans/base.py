"""What every planner says of itself, and how it gives its batches."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Int32

from cdejax.clustering.groups import TrainingPairs
from cdejax.config import PlanConfig
from cdejax.storage import artifacts

Need = Literal["vectors", "clusters", "model"]
"""Something beside the pairs that a planner may read: the vectors artefact, the
clusters artefact, or the folder of `model.encoder`."""


@dataclass(frozen=True)
class Planner(abc.ABC):
    """Decides which training pairs form which batch.

    The same settings, pairs, needs and seed must always give the same batches: the
    plan's artefact is keyed on these alone.
    """

    settings: PlanConfig

    @classmethod
    def of(
        cls, settings: PlanConfig, planner_of: Callable[[PlanConfig], Planner]
    ) -> Self:
        """The planner of the given settings.

        Args:
          settings: those of a recipe's `plan`.
          planner_of: makes the planner of any settings; for a planner that is composed
            of others.
        """
        return cls(settings)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the planner reads beside the pairs."""
        return ()

    @property
    def mixes_domains(self) -> bool:
        """Whether a batch may hold pairs of several domain groups."""
        return False

    def check(self) -> None:
        """Looks at what the settings name, before any work.

        Raises:
          ValueError: it is missing or cannot be read.
        """
        return

    def spec(self, folders: Mapping[Need, Path]) -> dict[str, Any]:
        """What decides the plan beside pairs, settings and seed, as JSON values.

        It becomes part of the artefact's fingerprint.

        Args:
          folders: of everything that the planner needs.

        Raises:
          ValueError: something is missing or cannot be read.
        """
        return {need: _fingerprint(need, folders[need]) for need in self.needs}

    def count_steps(self, pairs: TrainingPairs) -> int | None:
        """Steps of all epochs; None where more than the pairs decides how many.

        Called as soon as there are pairs, so that mistakes are found before vectors
        and clusters are computed.

        Raises:
          ValueError: the settings do not fit the pairs.
        """
        return None

    @abc.abstractmethod
    def epochs(
        self, pairs: TrainingPairs, folders: Mapping[Need, Path], seed: int
    ) -> Iterator[Int32[np.ndarray, "steps batch"]]:
        """The batches of each epoch: row numbers of training pairs.

        Args:
          pairs: the training pairs and their domain groups.
          folders: of everything that the planner needs.
          seed: of everything that is drawn.

        Raises:
          ValueError: the settings do not fit the pairs.
        """


def _fingerprint(need: Need, folder: Path) -> Any:
    if need == "model":
        from cdejax.embedding.keys import folder_files

        return folder_files(folder)
    return artifacts.artifact_fingerprint(folder)
