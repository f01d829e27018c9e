"""Recipes: what every stage is told, and how it is read from YAML."""

from cdejax.config.schema import VALIDATION_SHARE as VALIDATION_SHARE
from cdejax.config.schema import ClustersConfig as ClustersConfig
from cdejax.config.schema import ColumnsConfig as ColumnsConfig
from cdejax.config.schema import Config as Config
from cdejax.config.schema import DataConfig as DataConfig
from cdejax.config.schema import EvaluationConfig as EvaluationConfig
from cdejax.config.schema import ModelConfig as ModelConfig
from cdejax.config.schema import PlanConfig as PlanConfig
from cdejax.config.schema import SideConfig as SideConfig
from cdejax.config.schema import SourceConfig as SourceConfig
from cdejax.config.schema import TokensConfig as TokensConfig
from cdejax.config.schema import TrainingConfig as TrainingConfig
from cdejax.config.schema import VectorsConfig as VectorsConfig
