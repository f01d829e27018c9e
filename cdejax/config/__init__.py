"""Recipes: the configuration of every stage, and how it is read from YAML."""

from cdejax.config.data import ColumnsConfig, DataConfig, SourceConfig
from cdejax.config.evaluation import EvaluationConfig
from cdejax.config.model import ModelConfig
from cdejax.config.plan import ClustersConfig, PlanConfig, VectorsConfig
from cdejax.config.recipe import VALIDATION_SHARE, Config
from cdejax.config.tokens import SideConfig, TokensConfig
from cdejax.config.training import TrainingConfig

__all__ = [
    "VALIDATION_SHARE",
    "ClustersConfig",
    "ColumnsConfig",
    "Config",
    "DataConfig",
    "EvaluationConfig",
    "ModelConfig",
    "PlanConfig",
    "SideConfig",
    "SourceConfig",
    "TokensConfig",
    "TrainingConfig",
    "VectorsConfig",
]
