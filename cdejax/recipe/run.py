"""The commands of a recipe: each stage of every variant, or all of them in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cdejax.config import Config
from cdejax.data.write_tfds import tfds_stage
from cdejax.recipe.export import export
from cdejax.recipe.preflight import check_inputs, check_sources
from cdejax.recipe.scores import evaluate_recipe, report
from cdejax.recipe.stages import Stages, one_lookup, root_of, variants_of
from cdejax.recipe.train import train
from cdejax.recipe.variant import train_variant
from cdejax.retrieval.collections import collection_folders
from cdejax.runtime.processes import main_only
from cdejax.training.run_folder import check_version

if TYPE_CHECKING:
    from rich.console import RenderableType

_log = logging.getLogger(__name__)


def run_pairs(config: Config) -> str:
    """Runs the pairs stage of every variant; returns the paths, one per line."""
    return _for_each_variant(config, Stages.pairs)


def run_tfds(config: Config) -> str:
    """Writes every variant's sources as TFDS datasets; returns paths, one per line."""
    return _for_each_variant(
        config, lambda stages: tfds_stage(stages.config, stages.folder)
    )


def run_tokens(config: Config) -> str:
    """Runs the tokens stage of every variant; returns the paths, one per line."""
    return _for_each_variant(config, Stages.tokens)


def run_vectors(config: Config) -> str:
    """Runs the vectors stage of every variant; returns the paths, one per line."""
    return _for_each_variant(config, Stages.vectors)


def run_clusters(config: Config) -> str:
    """Runs the clusters stage of every variant; returns the paths, one per line."""
    return _for_each_variant(config, Stages.clusters)


def run_plan(config: Config) -> str:
    """Runs the plan stage of every variant; returns the paths, one per line."""
    return _for_each_variant(config, Stages.plan)


@one_lookup()
def _for_each_variant(config: Config, stage: Callable[[Stages], Path]) -> str:
    variants = variants_of(config).values()
    for resolved in variants:  # before the first of them is read
        check_sources(resolved)
    paths = [stage(Stages(resolved)) for resolved in variants]
    return "\n".join(str(path) for path in dict.fromkeys(paths))


@one_lookup()
def run_train(config: Config) -> str:
    """Trains or resumes every variant; returns the run folders, one per line."""
    return "\n".join(str(trained.folder) for trained in train(config).values())


@one_lookup()
def run(config: Config) -> RenderableType | None:
    """Runs every stage of every variant; returns the report (None off process 0)."""
    variants = variants_of(config)
    for name, resolved in variants.items():  # stop early if something is missing
        check_inputs(resolved)
        check_version(root_of(resolved) / name)
        collection_folders(resolved.evaluation)
    for name, resolved in variants.items():
        _log.info("variant %s", name)
        train_variant(name, resolved)

    def conclude() -> RenderableType:
        for folder in evaluate_recipe(config):  # model cards report the scores
            _log.info("evaluated: %s", folder)
        export(config)
        return report(config)

    return main_only("conclusion", conclude)
