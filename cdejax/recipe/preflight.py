"""Checks that find mistakes in a recipe within seconds, before any work."""

from __future__ import annotations

from pathlib import Path

from cdejax.clustering.files import load_npy
from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.plans.registry import planner_of
from cdejax.config import Config
from cdejax.data.pairs import Pairs
from cdejax.data.sources import check_source
from cdejax.data.tokenizer import Tokenizer
from cdejax.data.tokens import check_prefixes
from cdejax.folders.paths import resolve_folder
from cdejax.models import from_pretrained
from cdejax.models.pretrained.settings import read_settings, transformer_folder
from cdejax.retrieval.evaluate import measure_names
from cdejax.training.batch import check_context_size
from cdejax.training.objectives.registry import OBJECTIVES
from cdejax.training.optimizer import learning_rate
from cdejax.training.run_model import init_folder, is_export


def check_inputs(config: Config) -> None:
    """Checks everything that a recipe reads: sources, models, arrays.

    This reads the first rows of a source, everything of a model except the values of
    its weights, and the header of an array.

    Raises:
      ValueError: an input is missing, cannot be read or does not fit the recipe.
    """
    check_models(config)
    check_sources(config)
    if config.vectors.method == "file":
        for side in ("queries", "documents"):
            path = Path(getattr(config.vectors, side))
            load_npy(path, f"vectors.{side}: {path}")
    planner_of(config.plan).check()
    check_measures(config)


def check_measures(config: Config) -> None:
    """Checks the measures that a recipe names (see `measure_names`)."""
    named = [("evaluation.measures", name) for name in config.evaluation.measures]
    for setting, name in [*named, ("training.select_by", config.training.select_by)]:
        try:
            measure_names([name])
        except ValueError as error:
            raise ValueError(f"{setting}: {error}") from None


def check_sources(config: Config) -> None:
    """Checks the first rows of every source.

    Raises:
      ValueError: a source does not exist, cannot be read, or lacks a column.
    """
    for source in config.data.sources:
        check_source(source)


def check_models(config: Config) -> None:
    """Checks the models that a recipe starts from, except the values of their weights.

    Raises:
      ValueError: a folder does not exist or holds no loadable model; a batch is smaller
        than the context that a contextual encoder is trained with, or has no negatives;
        or the objective needs hard negatives and there are none.
    """
    if config.model.kind == "contextual":
        check_context_size(config.model.context_size, config.plan.batch_size)
    if config.plan.batch_size == 1 and not config.training.negatives_per_query:
        raise ValueError(
            "plan.batch_size is 1 and training.negatives_per_query 0, so no query has "
            "a negative and nothing would be learned; raise one of them"
        )
    kind = OBJECTIVES[config.training.objective]
    if kind.needs_hard_negatives and not config.training.negatives_per_query:
        raise ValueError(
            f"training.objective: {config.training.objective} needs hard negatives; "
            "set training.negatives_per_query to 1 or more"
        )
    _check_model(config.model.encoder, "model.encoder")
    if config.vectors.method == "encoder":
        _check_model(config.vectors.encoder or "", "vectors.encoder")
    if config.training.init_from is not None:
        check_init_from(config.training.init_from)


def check_init_from(name: str) -> None:
    """Checks that training can start from a folder; ValueError if it holds no model."""
    folder = init_folder(name)
    if is_export(folder):
        try:
            from_pretrained(folder, weights=False)
        except ValueError as error:
            raise ValueError(f"training.init_from: {error}") from None


def _check_model(name: str, setting: str) -> None:
    folder = resolve_folder(name, setting)
    try:
        read_settings(folder)
        from_pretrained(folder, weights=False)
        Tokenizer.load(transformer_folder(folder))
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def check_pairs(config: Config, folder: Path) -> None:
    """Checks a recipe against its pairs: domains and number of steps.

    Raises:
      ValueError: a domain that the pairs do not have or that is smaller than a batch, a
        user's plan that does not fit, or a warm-up as long as the plan.
    """
    pairs = Pairs.open(folder)
    check_prefixes(config.tokens, pairs.domains)
    grouped = TrainingPairs.of(pairs, config.plan.domain_groups)
    steps = planner_of(config.plan).count_steps(grouped)
    if steps is not None:
        learning_rate(config.training, steps)
