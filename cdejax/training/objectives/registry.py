"""The objectives that `training.objective` can select."""

from __future__ import annotations

import dataclasses

from cdejax.config import TrainingConfig
from cdejax.training.objectives.base import Objective
from cdejax.training.objectives.info_nce import InfoNCE

OBJECTIVES: dict[str, type[Objective]] = {"info_nce": InfoNCE}
"""Objective classes by their name in a recipe."""


def objective_of(training: TrainingConfig) -> Objective:
    """Builds the objective of a recipe.

    Its fields are set from the settings of the same names in `training`.
    """
    kind = OBJECTIVES[training.objective]
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(training, name) for name in names})
