"""`plan.kind: file`: a user's own batch plan, checked against the training pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from cdejax.clustering.files import check_origin, load_npy
from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.plans.base import Need, Planner
from cdejax.config import PlanConfig
from cdejax.storage import artifacts


@dataclass(frozen=True)
class FromFile(Planner):
    """Reads the batches from the files at `plan.path`."""

    @property
    def path(self) -> Path:
        """A `.npy` file, or a folder of `.npy` files."""
        return Path(self.settings.path or "")

    def check(self) -> None:
        """Raises ValueError if there is no such file or folder."""
        if not self.path.exists():
            raise ValueError(self._missing)

    def spec(self, folders: Mapping[Need, Path]) -> dict[str, Any]:
        """The hash of the files."""
        if not self.path.exists():
            raise ValueError(f"{self._missing}.")
        return {"file": artifacts.hash_files(self.path)}

    def count_steps(self, pairs: TrainingPairs) -> int:
        """Number of steps in the files."""
        return sum(len(steps) for steps in self._read(pairs))

    def epochs(
        self, pairs: TrainingPairs, folders: Mapping[Need, Path], seed: int
    ) -> Iterator[Int32[np.ndarray, "steps batch"]]:
        """The batches in the files (see `read_plan` and `check_plan`)."""
        for steps in self._read(pairs):
            yield steps.astype(np.int32)

    def _read(self, pairs: TrainingPairs) -> list[Int[np.ndarray, "steps batch"]]:
        epochs = read_plan(self.path, self.settings, pairs.fingerprint)
        check_plan(epochs, pairs.group, pairs.names)
        return epochs

    @property
    def _missing(self) -> str:
        return f"plan.path: {self.settings.path}: no such file or folder"


def read_plan(
    path: Path, settings: PlanConfig, pairs_fingerprint: str
) -> list[Int[np.ndarray, "steps batch"]]:
    """Reads one `.npy` (one epoch) or a folder of `epoch-*.npy`.

    A file `PATH.json` with {"pairs": FINGERPRINT}, or the manifest of a plan artefact,
    names the pairs artefact that the row numbers belong to.

    Raises:
      ValueError: no such file, not plain integers of shape [steps, batch], made for
        another pairs artefact, or a batch size or number of epochs other than
        configured.
    """
    check_origin(path, f"plan.path: {path}", pairs_fingerprint)
    files = sorted(path.glob("epoch-*.npy")) if path.is_dir() else [path]
    if len(files) != settings.epochs:
        raise ValueError(
            f"plan.path: {path}: {len(files)} epochs (one .npy is one epoch, a folder "
            f"holds epoch-0000.npy, …), but plan.epochs is {settings.epochs}."
        )
    return [_read_epoch(file, settings.batch_size) for file in files]


def check_plan(
    epochs: Sequence[Int[np.ndarray, "steps batch"]],
    group: Int[np.ndarray, "pairs"],
    names: Sequence[str],
) -> None:
    """Checks the rules that every plan must follow, whatever made it.

    Args:
      epochs: row numbers of the batches of each epoch.
      group: domain group of every training pair.
      names: names of the groups.

    Raises:
      ValueError: an unknown row, a row twice in one epoch, or a batch that mixes
        domains (if that is intended, merge them with `domain_groups`).
    """
    for number, steps in enumerate(epochs):
        outside = (steps < 0) | (steps >= len(group))
        if outside.any():
            step, column = np.argwhere(outside)[0]
            raise ValueError(
                f"plan: epoch {number}, step {step} names row {steps[step, column]}; "
                f"the training pairs are rows 0 to {len(group) - 1}."
            )
        _refuse_repeats(number, steps)
        mixed = (group[steps] != group[steps[:, :1]]).any(axis=1)
        if mixed.any():
            step = int(mixed.argmax())
            found = ", ".join(repr(names[g]) for g in np.unique(group[steps[step]])[:5])
            raise ValueError(
                f"plan: epoch {number}, step {step} mixes the domains {found}. "
                "Keep batches within a domain, or merge domains on purpose with "
                "plan.domain_groups."
            )


def _read_epoch(file: Path, batch: int) -> Int[np.ndarray, "steps batch"]:
    where = f"plan.path: {file}"
    steps = load_npy(file, where)
    if steps.dtype.kind not in "iu":
        raise ValueError(f"{where}: dtype {steps.dtype}; row numbers are integers.")
    if steps.ndim != 2 or 0 in steps.shape:
        raise ValueError(f"{where}: shape {steps.shape}; it must be [steps, batch].")
    if steps.shape[1] != batch:
        raise ValueError(
            f"{where}: batches of {steps.shape[1]} rows, but plan.batch_size is "
            f"{batch}; set plan.batch_size to {steps.shape[1]}."
        )
    return steps


def _refuse_repeats(number: int, steps: Int[np.ndarray, "steps batch"]) -> None:
    rows, counts = np.unique(steps, return_counts=True)
    if counts.max() > 1:
        row = rows[counts.argmax()]
        where = [int(step) for step in np.flatnonzero((steps == row).any(axis=1))]
        raise ValueError(
            f"plan: epoch {number} names row {row} {counts.max()} times (steps "
            f"{where[:5]}); a row may occur once an epoch."
        )
