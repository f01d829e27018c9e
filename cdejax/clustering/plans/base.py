"""The interface of planners."""

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
"""An input that a planner may read besides the pairs: the vectors artefact, the
clusters artefact, or the folder of `model.encoder`."""


@dataclass(frozen=True)
class Planner(abc.ABC):
    """Decides which training pairs form which batch.

    Equal settings, pairs, needs and seed must always yield equal batches: the plan's
    artefact is keyed on these alone.
    """

    settings: PlanConfig

    @classmethod
    def of(
        cls, settings: PlanConfig, planner_of: Callable[[PlanConfig], Planner]
    ) -> Self:
        """The planner of the given settings.

        Args:
          settings: `plan` of a recipe.
          planner_of: returns the planner of any settings, for a planner composed of
            others.
        """
        return cls(settings)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Inputs that the planner reads besides the pairs."""
        return ()

    @property
    def mixes_domains(self) -> bool:
        """Whether a batch may hold pairs of several domain groups."""
        return False

    def check(self) -> None:
        """Checks the files that the settings name, before any work.

        Raises:
          ValueError: a file is missing or cannot be read.
        """
        return

    def spec(self, folders: Mapping[Need, Path]) -> dict[str, Any]:
        """What the plan depends on besides pairs, settings and seed, as JSON values.

        It becomes part of the artefact's fingerprint.

        Args:
          folders: folders of the planner's inputs (`needs`).

        Raises:
          ValueError: an input is missing or cannot be read.
        """
        return {need: _fingerprint(need, folders[need]) for need in self.needs}

    def count_steps(self, pairs: TrainingPairs) -> int | None:
        """Total steps of all epochs; None if they depend on more than the pairs.

        Called as soon as the pairs exist, so that mistakes are found before vectors and
        clusters are computed.

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
          folders: folders of the planner's inputs (`needs`).
          seed: seed of everything that is drawn.

        Raises:
          ValueError: the settings do not fit the pairs.
        """


def _fingerprint(need: Need, folder: Path) -> Any:
    if need == "model":
        from cdejax.embedding.keys import folder_files

        return folder_files(folder)
    return artifacts.artifact_fingerprint(folder)
