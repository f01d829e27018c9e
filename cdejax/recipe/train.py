"""Training from Python in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdejax.config import Config
from cdejax.config.load import load_config, only_variant
from cdejax.embedding.embedder import Embedder
from cdejax.models import TrainableModel
from cdejax.recipe.preflight import check_inputs
from cdejax.recipe.stages import one_lookup, root_of, variants_of
from cdejax.recipe.variant import load_trained, make_embedder, train_variant
from cdejax.storage.artifacts import jsonable
from cdejax.training.callbacks import Callback, check_callbacks
from cdejax.training.metrics import read_metrics
from cdejax.training.run_folder import check_version


@dataclass(frozen=True)
class Trained:
    """A variant that was trained, to its end or until a callback stopped it."""

    name: str
    """Of the variant; `model` if the recipe has none."""
    config: Config
    """The variant's own recipe."""
    folder: Path
    """Its checkpoints and metrics."""

    def model(self) -> TrainableModel:
        """The model (a Flax NNX module) with the best parameters.

        Without an evaluation, those of the last checkpoint.
        """
        return load_trained(self.config, self.folder)

    def embedder(self) -> Embedder:
        """The same with tokenizer, prompts and length limits: encodes texts."""
        return make_embedder(self.config, self.model(), self.name)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: starts, steps and evaluations."""
        return read_metrics(self.folder)


@one_lookup()
def train(
    config: Config | str | Path | Mapping[str, Any],
    *,
    variant: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Trained]:
    """Trains the models of a recipe, as `cdejax train` does.

    Stages whose artefacts are missing run first. A run that was stopped is resumed,
    one that has ended is not trained again. Among several processes all call this.

    Args:
      config: a recipe: the path of a YAML file, a nested mapping like one, or a
        `Config`.
      variant: the only variant to train (default: all).
      callbacks: told of the steps, evaluations and checkpoints of every run.

    Returns:
      What was trained, by variant (`model` in a recipe without variants).

    Raises:
      ValueError: a mistake in the recipe or in what it names, an unknown variant, or a
        run that cannot go on.
      Stopped: Ctrl-C or SIGTERM came, and a checkpoint was written.
      Exception: whatever a callback raised, once a checkpoint was written.
    """
    check_callbacks(callbacks)
    if not isinstance(config, Config | str | Path | Mapping):
        raise ValueError(
            f"config: {config!r} is no recipe; give the path of a YAML file, a mapping "
            "or a Config"
        )
    # A `Config` is checked whole, too, as if it had been read from a file.
    recipe = load_config(config if isinstance(config, str | Path) else jsonable(config))
    if variant is not None:
        recipe = only_variant(recipe, variant)
    variants = variants_of(recipe)
    for name, resolved in variants.items():
        check_inputs(resolved)
        check_version(root_of(resolved) / name)
    return {
        name: Trained(name, resolved, train_variant(name, resolved, callbacks))
        for name, resolved in variants.items()
    }
