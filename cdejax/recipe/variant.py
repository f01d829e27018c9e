"""One variant of a recipe: its training, its model, its export."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdejax.config import Config
from cdejax.data.pairs import Pairs
from cdejax.data.prompts import tokens_of
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.folders.paths import resolve_folder
from cdejax.models import TrainableModel
from cdejax.recipe.stages import Stages, root_of
from cdejax.retrieval.collections import FEW, heldout_collection, validation_collection
from cdejax.retrieval.evaluate import evaluate_embedder
from cdejax.retrieval.measures import measure_of
from cdejax.runtime.compilation import enable_compilation_cache
from cdejax.runtime.processes import is_main
from cdejax.training import loop
from cdejax.training.callbacks import Callback
from cdejax.training.run_folder import check_trained, check_version
from cdejax.training.run_model import build_model, trained_params

_log = logging.getLogger(__name__)


def train_variant(
    name: str, config: Config, callbacks: Sequence[Callback] = ()
) -> Path:
    """Trains one variant and returns its folder."""
    if config.training.compilation_cache is not None:
        enable_compilation_cache(config.training.compilation_cache)
    inputs = Stages(config).inputs()
    folder = root_of(config) / name
    score = heldout_score(config, inputs.pairs)
    return loop.train(config, inputs, folder, score, callbacks=callbacks)


def heldout_score(config: Config, pairs: Pairs) -> Callable[[Any], float] | None:
    """A function that scores a model by `training.select_by` on held-out pairs.

    These are the pairs that checkpoints are selected on, or all held-out pairs if there
    is no selection; None if there are none. The function holds no weights between two
    calls.

    Raises:
      ValueError: too few pairs are held out to select checkpoints on a part of them.
    """
    if not len(pairs.heldout):
        return None
    chosen_on = validation_collection(pairs, config.validation_share, config.seed)
    collection = chosen_on or heldout_collection(pairs)
    few = len(collection.queries) < FEW
    if config.training.eval_every and few and is_main():
        _log.warning(
            "training.eval_every: a choice of checkpoints on %d queries is mostly "
            "chance; hold out more pairs or raise evaluation.validation_fraction",
            len(collection.queries),
        )

    measure = measure_of(config.training.select_by).name

    def score(model: Any) -> float:
        result = evaluate_embedder(
            make_embedder(config, model, "model"),
            collection,
            seed=config.seed,
            batch_size=config.evaluation.batch_size,
            ignore_identical_ids=config.evaluation.ignore_identical_ids,
            measures=[measure],
        )
        return float(result.scores[measure].mean())

    return score


def make_embedder(config: Config, model: Any, name: str) -> Embedder:
    """A model in memory as an embedder, with the recipe's prefixes and limits.

    Prefixes that the recipe does not set default to the prompts of the model that
    training started from.
    """
    tokens = tokens_of(config)
    prompts = {"query": tokens.query.prefix, "document": tokens.document.prefix}
    return Embedder(
        model,
        Tokenizer.load(resolve_folder(config.model.encoder, "model.encoder")),
        prompts={side: prefix or "" for side, prefix in prompts.items()},
        max_length=max(tokens.query.max_length, tokens.document.max_length),
        context_length=tokens.context.max_length if tokens.context else None,
        name=name,
    )


def trained_folder(config: Config, name: str) -> Path:
    """Folder of a variant whose training has finished.

    Raises:
      ValueError: it has not finished, or another recipe or version trained it.
    """
    folder = root_of(config) / name
    check_version(folder)  # before its artefacts are made again
    check_trained(folder, config, Stages(config).inputs())
    return folder


def trained_model(config: Config, name: str) -> TrainableModel:
    """A variant's model with its best parameters.

    Raises:
      ValueError: it was not trained, or another recipe trained it.
    """
    return load_trained(config, trained_folder(config, name))


def load_trained(config: Config, folder: Path) -> TrainableModel:
    """The model in a run's folder: its best parameters, or else those of its last step.

    Raises:
      ValueError: the run has no checkpoint.
    """
    from flax import nnx

    graphdef, params = nnx.split(build_model(config))
    return nnx.merge(graphdef, trained_params(folder, params))
