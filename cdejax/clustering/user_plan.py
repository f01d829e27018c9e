"""A user's own batch plan: read, and checked against the training pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from cdejax.clustering.files import check_origin, load_npy
from cdejax.config import PlanConfig


def read_plan(
    path: Path, settings: PlanConfig, pairs_fingerprint: str
) -> list[Int[np.ndarray, "steps batch"]]:
    """Reads one `.npy` (one epoch) or a folder of `epoch-*.npy`.

    A file `PATH.json` with {"pairs": FINGERPRINT}, or the manifest of a plan artefact,
    says which pairs artefact the row numbers belong to.

    Raises:
      ValueError: nothing there, not plain integers of shape [steps, batch], made for
        another pairs artefact, or batch size or epochs other than configured.
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
    """Checks what a plan must keep, whoever made it.

    Args:
      epochs: row numbers of the batches of each epoch.
      group: domain group of every training pair.
      names: names of the groups.

    Raises:
      ValueError: an unknown row, a row twice in one epoch, or a batch that mixes
        domains (merge them with `domain_groups` if it is meant to).
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
