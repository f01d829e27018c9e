"""The objectives that `training.objective` names."""

from __future__ import annotations

import dataclasses

from cdejax.config import TrainingConfig
from cdejax.training.objectives.base import Objective
from cdejax.training.objectives.info_nce import InfoNCE

OBJECTIVES: dict[str, type[Objective]] = {"info_nce": InfoNCE}
"""By the name in a recipe."""


def objective_of(training: TrainingConfig) -> Objective:
    """The objective of a recipe.

    Its fields are the settings of the same names in `training`.
    """
    kind = OBJECTIVES[training.objective]
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(training, name) for name in names})
