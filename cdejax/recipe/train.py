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
    """A trained variant; training has finished, or a callback stopped it."""

    name: str
    """Name of the variant; `model` if the recipe has no variants."""
    config: Config
    """The variant's own recipe."""
    folder: Path
    """Folder of its checkpoints and metrics."""

    def model(self) -> TrainableModel:
        """The model (a Flax NNX module) with the best parameters.

        Without evaluations during training, those of the last checkpoint.
        """
        return load_trained(self.config, self.folder)

    def embedder(self) -> Embedder:
        """The model with tokenizer, prompts and length limits, to encode texts."""
        return make_embedder(self.config, self.model(), self.name)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl: starts, steps and evaluations."""
        return read_metrics(self.folder)


@one_lookup()
def train(
    config: Config | str | Path | Mapping[str, Any],
    *,
    variant: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Trained]:
    """Trains the models of a recipe, as `cdejax train` does.

    Stages whose artefacts are missing run first. A run that was stopped is resumed; one
    that has finished is not trained again. With several processes, all must call this.

    Args:
      config: a recipe: the path of a YAML file, an equivalent nested mapping, or a
        `Config`.
      variant: the only variant to train (default: all).
      callbacks: called on the steps, evaluations and checkpoints of every run.

    Returns:
      The trained variants by name (`model` in a recipe without variants).

    Raises:
      ValueError: a mistake in the recipe or in the files it names, an unknown variant,
        or a run that cannot be resumed.
      Stopped: Ctrl-C or SIGTERM was received, and a checkpoint was written.
      Exception: any exception of a callback, raised again after writing a checkpoint.
    """
    check_callbacks(callbacks)
    if not isinstance(config, Config | str | Path | Mapping):
        raise ValueError(
            f"config: {config!r} is not a recipe; give the path of a YAML file, a "
            "mapping or a Config"
        )
    # A `Config` is validated in full, too, as if it had been read from a file.
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
