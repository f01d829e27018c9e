"""The record of a run in its folder, and which recipes may continue it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdejax.config import Config, TrainingConfig
from cdejax.storage.artifacts import (
    RUN,
    VERSIONS,
    fingerprint,
    jsonable,
    read_json,
    write_json,
)
from cdejax.training.checkpoint_folder import saved_steps
from cdejax.training.run_model import BEST, CHECKPOINTS, start_files

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.clustering.vectors import Vectors
    from cdejax.data.pairs import Pairs
    from cdejax.data.tokens import Tokens

_NOT_DECISIVE = (
    *("eval_every", "checkpoint_every", "checkpoint_minutes", "keep_checkpoints"),
    *("log_every", "read_threads", "compilation_cache"),
    *("chunk_tokens", "cpu_activations", "packed", "max_widths"),
    *("loss_block", "ring", "fsdp"),
)
"""Settings of evaluation, reading and computing on which the parameters do not depend,
up to the order of sums."""
_SAVED = (CHECKPOINTS, BEST)


@dataclass(frozen=True)
class Inputs:
    """The artefacts that a run reads."""

    pairs: Pairs
    tokens: Tokens
    plan: Plan
    vectors: Vectors | None
    fingerprints: dict[str, str]
    """Fingerprints of all artefacts that the run depends on, by stage."""
    root: Path | None = None
    """Folder of all artefacts, for the shapes of the batches (None: they are found anew
    at every start)."""


def claim_run(folder: Path, config: Config, inputs: Inputs) -> None:
    """Records the run in its folder, or checks that the recorded one is the same.

    A run without a checkpoint has nothing to lose and is replaced.

    Raises:
      ValueError: the folder holds a run of another recipe or of other artefacts.
    """
    begun = any(saved_steps(folder / name) for name in _SAVED)
    if begun and (folder / RUN).is_file():
        check_run(folder, config, inputs)
    elif begun:
        raise ValueError(
            f"{folder}: holds checkpoints, but no {RUN} that says of what. Put it back "
            "from a copy, or move the folder away to train anew."
        )
    else:
        recipe = _decisive_settings(config, inputs)
        versions = {"version": VERSIONS["training"], "cdejax": version("cdejax")}
        key = {"fingerprint": fingerprint(recipe)}
        write_json(folder / RUN, versions | key | {"recipe": recipe})


def check_run(folder: str | Path, config: Config, inputs: Inputs) -> None:
    """Refuses a folder that does not hold this recipe's run.

    Raises:
      ValueError: the folder holds no run, or one of another recipe or other artefacts.
    """
    path = Path(folder) / RUN
    if not path.is_file():
        raise ValueError(f"{folder}: not trained; run `cdejax train` first")
    check_version(folder)
    found = _with_defaults(read_json(path).get("recipe"))
    if changed := sorted(_differences(found, _decisive_settings(config, inputs))):
        raise ValueError(
            f"{folder}: holds a run of another recipe or of other data (differs in "
            f"{', '.join(changed)}). Choose another `name` or `output`, or move the "
            "folder away to train anew."
        )


def check_version(folder: str | Path) -> None:
    """Refuses, before any other work, a run that this version cannot continue.

    Folders without a run, or whose run has no checkpoint yet, are accepted.

    Raises:
      ValueError: another version of the training code began the run, or one so old
        that it did not record all files that decide a run.
    """
    path = Path(folder) / RUN
    if not path.is_file() or not any(saved_steps(Path(folder) / n) for n in _SAVED):
        return
    held = read_json(path)
    found = held.get("version") if isinstance(held, dict) else None
    if found != VERSIONS["training"]:
        old = "none" if found is None else f"{found} of cdejax {held['cdejax']}"
        raise ValueError(
            f"{path}: another version of cdejax began this run (training version "
            f"{old}; this one has {VERSIONS['training']}) and this one cannot continue "
            "it. Finish it with that version, choose another `name` or `output`, or "
            "move the folder away to train anew."
        )


def check_trained(folder: str | Path, config: Config, inputs: Inputs) -> None:
    """Refuses a folder that does not hold this recipe's finished run.

    Raises:
      ValueError: as `check_run`, or the run is not finished.
    """
    check_run(folder, config, inputs)
    done = max(saved_steps(Path(folder) / CHECKPOINTS), default=0)
    if done < inputs.plan.total_steps:
        raise ValueError(
            f"{folder}: trained {done} of {inputs.plan.total_steps} steps; run `cdejax "
            "train` again to finish"
        )


def _decisive_settings(config: Config, inputs: Inputs) -> dict[str, Any]:
    """All settings and inputs that decide a run's parameters."""
    training = _decisive_training(config.training)
    recipe = {"model": jsonable(config.model), "training": training}
    recipe |= {"seed": config.seed, "files": start_files(config)}
    if config.validation_share:
        recipe["evaluation.validation_fraction"] = config.validation_share
    return recipe | {"artefacts": inputs.fingerprints}


def _with_defaults(recipe: Any) -> Any:
    """A recorded recipe; settings that its version did not know are at their default.

    They came later, and what they choose was not to be chosen then.
    """
    if not isinstance(recipe, dict) or not isinstance(recipe.get("training"), dict):
        return recipe
    return recipe | {
        "training": _decisive_training(TrainingConfig()) | recipe["training"]
    }


def _decisive_training(training: TrainingConfig) -> dict[str, Any]:
    """The settings that decide a run's parameters."""
    settings = jsonable(training)
    return {name: x for name, x in settings.items() if name not in _NOT_DECISIVE}


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Dotted names of the differences between two nested mappings."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield name
        return
    for key in old.keys() | new.keys():
        inner = f"{name}.{key}" if name else key
        yield from _differences(old.get(key), new.get(key), inner)
