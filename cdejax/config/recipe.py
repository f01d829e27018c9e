"""A recipe: the configuration of all stages, and what must hold between them.

`cdejax.config.load.load_config` reads it from one YAML file. `variants` names
experiments that share every stage whose settings they do not override.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdejax.config.checks import check_folder_name
from cdejax.config.data import DataConfig
from cdejax.config.evaluation import EvaluationConfig
from cdejax.config.model import ModelConfig
from cdejax.config.plan import ClustersConfig, PlanConfig, VectorsConfig
from cdejax.config.tokens import TokensConfig
from cdejax.config.training import TrainingConfig
from cdejax.folders.paths import local_output

VALIDATION_SHARE = 0.2
"""Default share of the held-out pairs used to select checkpoints."""


@dataclass(frozen=True)
class Config:
    """The configuration of all stages of one experiment, or of several variants of it.

    Raises:
      ValueError: a value that cannot work, here or in a section; names the field, the
        value and what would be right.
    """

    name: str = "run"
    """Name of the recipe."""
    output: str = "runs"
    """Folder for artefacts, checkpoints and reports."""
    seed: int = 0
    """Seed of all random draws."""
    data: DataConfig = field(default_factory=DataConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    vectors: VectorsConfig = field(default_factory=VectorsConfig)
    clusters: ClustersConfig = field(default_factory=ClustersConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Experiments: {name: overrides}, each a nested mapping like the recipe itself."""

    def __post_init__(self) -> None:
        check_folder_name("name", self.name)
        local_output(self.output, "output")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: {self.seed} must be at least 0 and below 2^31")
        for name in self.variants:
            check_folder_name("variants", name)
        if self.training.eval_every and self.evaluation.validation_fraction == 0:
            raise ValueError(
                "evaluation.validation_fraction: 0 leaves no pairs for "
                "training.eval_every to choose checkpoints on; leave it out, or set "
                "eval_every to 0"
            )
        for name in {"artifacts", "report"} & self.variants.keys():
            raise ValueError(f"variants: `{name}` is a folder that all variants share")

    @property
    def validation_share(self) -> float:
        """Share of the held-out pairs used to select checkpoints."""
        evaluation = self.evaluation
        if evaluation.validation_fraction is not None:
            return evaluation.validation_fraction
        if not self.training.eval_every:
            return 0.0
        shown = evaluation.heldout or evaluation.heldout_by_domain
        return VALIDATION_SHARE if shown else 1.0
