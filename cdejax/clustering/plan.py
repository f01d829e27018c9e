"""The batch plan: the training pairs of every step, decided before training.

A plan is a folder with one file per epoch. The rows of a step are a pure function of
plan and step: resuming needs only the step number, and batches do not depend on hosts,
devices or loader threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from cdejax.clustering.files import check_origin
from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.plans.base import Need, Planner
from cdejax.clustering.plans.registry import planner_of
from cdejax.config import Config, PlanConfig
from cdejax.data.pairs import Pairs
from cdejax.storage import artifacts


@dataclass(frozen=True)
class Plan:
    """Batches of all epochs, memory-mapped."""

    epochs: Sequence[Int32[np.ndarray, "steps batch"]]
    pairs: str | None = None
    """Fingerprint of the pairs artefact whose training rows the plan refers to."""

    @classmethod
    def open(cls, folder: str | Path, pairs: str | None = None) -> Plan:
        """Memory-maps a finished plan artefact.

        Args:
          folder: a plan artefact.
          pairs: fingerprint of the pairs artefact that it must have been made for.

        Raises:
          ValueError: not a plan artefact, or one made for other pairs.
        """
        manifest = artifacts.read_manifest(folder)
        made_for = manifest.get("spec", {}).get("pairs")
        if pairs is not None and made_for != pairs:
            raise ValueError(
                f"{folder}: the plan was made for pairs {made_for}, not for {pairs}; "
                "its row numbers mean other texts. Run the plan stage again."
            )
        epochs = _load_epochs(Path(folder))
        planned = manifest.get("counts", {}).get("steps")
        if planned != (found := [len(steps) for steps in epochs]):
            raise ValueError(
                f"{folder}: holds epochs of {found} steps, but its manifest says "
                f"{planned}. Files were removed or changed: remove the folder, so that "
                "the plan is made again."
            )
        return cls(epochs, made_for)

    @property
    def batch_size(self) -> int:
        """Pairs per step."""
        return self.epochs[0].shape[1]

    @property
    def ends(self) -> Int[np.ndarray, "epochs"]:
        """Cumulative number of steps at the end of each epoch."""
        return np.cumsum([len(steps) for steps in self.epochs])

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return int(self.ends[-1])

    def epoch_of(self, step: int) -> int:
        """Epoch of a step (both from 0); IndexError for a step beyond the plan."""
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} of a plan of {self.total_steps} steps")
        return int(np.searchsorted(self.ends, step, side="right"))

    def rows(self, step: int) -> Int32[np.ndarray, "batch"]:
        """Row numbers of the training pairs of a step."""
        epoch = self.epoch_of(step)
        return np.array(self.epochs[epoch][step - self.ends[epoch]])


def plan_stage(
    config: Config,
    root: str | Path,
    pairs_folder: str | Path,
    folders: Mapping[Need, Path] = MappingProxyType({}),
) -> Path:
    """Writes the batch plan of a pairs artefact, or reuses an existing one.

    Args:
      config: the recipe; `config.plan` and the seed are used.
      root: folder of all artefacts.
      pairs_folder: the pairs artefact.
      folders: folders of the planner's inputs (see `Planner.needs`).

    Returns:
      The artefact folder: `epoch-0000.npy`, … int32 [steps, batch]. Its manifest counts
      steps, rows and dropped rows by domain group.

    Raises:
      ValueError: an input of the planner is missing or was made from other pairs, the
        domain groups are invalid, or the planner itself raises it.
    """
    settings, planner = config.plan, planner_of(config.plan)
    fingerprint = artifacts.artifact_fingerprint(pairs_folder)
    _check_needs(planner, folders, fingerprint)
    spec = {"pairs": fingerprint, "plan": settings, "seed": config.seed}
    spec |= planner.spec(folders)

    def build(folder: Path) -> dict[str, Any]:
        pairs = TrainingPairs.of(Pairs.open(pairs_folder), settings.domain_groups)
        for number, steps in enumerate(planner.epochs(pairs, folders, config.seed)):
            _check_epoch(number, steps, settings)
            np.save(folder / f"epoch-{number:04d}.npy", steps)
        plan = Plan(_load_epochs(folder))
        return count_plan(plan, pairs, mixes_domains=planner.mixes_domains)

    return artifacts.run_stage(root, "plan", spec, build)


def _check_needs(planner: Planner, folders: Mapping[Need, Path], pairs: str) -> None:
    """Raises ValueError if an input is missing or was made from other pairs."""
    for need in planner.needs:
        if need not in folders:
            raise ValueError(
                f"plan.kind: {planner.settings.kind!r} needs a {need} artefact."
            )
        check_origin(Path(folders[need]), f"{folders[need]}", pairs)


def _check_epoch(number: int, steps: np.ndarray, settings: PlanConfig) -> None:
    """Raises ValueError if a planner breaks its contract (see `Planner.epochs`)."""
    if steps.dtype != np.int32 or steps.shape[1:] != (settings.batch_size,):
        raise ValueError(
            f"plan.kind: {settings.kind!r}: its planner made epoch {number} as "
            f"{steps.dtype} of shape {steps.shape}; it must be int32 of shape "
            f"[steps, {settings.batch_size}]."
        )


def count_plan(
    plan: Plan, pairs: TrainingPairs, *, mixes_domains: bool
) -> dict[str, Any]:
    """Steps, rows and dropped rows of a plan, for its manifest and for `--dry-run`.

    Args:
      plan: a finished plan.
      pairs: the training pairs that it was made from.
      mixes_domains: whether batches were drawn from all domains together, so that no
        domain was left out as too small.
    """
    groups, sizes = len(pairs.names), pairs.sizes
    used = [
        np.bincount(pairs.group[np.asarray(epoch).ravel()], minlength=groups)
        for epoch in plan.epochs
    ]
    domains = {
        name: {
            "rows": int(sizes[i]),
            "dropped": [int(sizes[i] - epoch[i]) for epoch in used],
        }
        for i, name in enumerate(pairs.names)
    }
    named = zip(pairs.names, sizes, strict=True)
    small = [name for name, size in named if 0 < size < plan.batch_size]
    return {
        "batch_size": plan.batch_size,
        "steps": [len(epoch) for epoch in plan.epochs],
        "cumulative_steps": [int(end) for end in plan.ends],
        "rows": len(pairs),
        "dropped": [len(pairs) - int(epoch.sum()) for epoch in used],
        "domains_left_out": [] if mixes_domains else small,
        "domains": domains,
    }


def _load_epochs(folder: Path) -> list[np.ndarray]:
    return [artifacts.load_array(file) for file in sorted(folder.glob("epoch-*.npy"))]
