"""The batch plan: which training pairs form which step, decided before training.

A plan is a folder with one file an epoch. The rows of a step are a pure function of
plan and step: resuming needs the step number alone, and batches do not depend on hosts,
devices or loader threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from cdejax.clustering.files import check_origin
from cdejax.clustering.groups import check_sizes, group_domains
from cdejax.clustering.kmeans import Clusters
from cdejax.clustering.packing import Group, pack_epoch
from cdejax.clustering.user_plan import check_plan, read_plan
from cdejax.config import Config, PlanConfig
from cdejax.data.pairs import Pairs
from cdejax.runtime.progress import progress
from cdejax.storage import artifacts


@dataclass(frozen=True)
class Plan:
    """Batches of all epochs, memory-mapped."""

    epochs: Sequence[Int32[np.ndarray, "steps batch"]]
    pairs: str | None = None
    """Fingerprint of the pairs artefact whose training rows the plan names."""

    @classmethod
    def open(cls, folder: str | Path, pairs: str | None = None) -> Plan:
        """Maps a finished plan artefact.

        Args:
          folder: a plan artefact.
          pairs: fingerprint of the pairs artefact that it must have been made for.

        Raises:
          ValueError: no plan artefact, or one made for other pairs.
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
        """Pairs a step."""
        return self.epochs[0].shape[1]

    @property
    def ends(self) -> Int[np.ndarray, "epochs"]:
        """Steps up to the end of each epoch."""
        return np.cumsum([len(steps) for steps in self.epochs])

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return int(self.ends[-1])

    def epoch_of(self, step: int) -> int:
        """The epoch that a step (from 0) belongs to; IndexError beyond the plan."""
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
    clusters_folder: str | Path | None = None,
) -> Path:
    """Writes the batch plan of a pairs artefact, or finds it written.

    Args:
      config: the recipe; `config.plan` and the seed decide.
      root: folder of all artefacts.
      pairs_folder: pairs artefact.
      clusters_folder: clusters artefact, needed for `kind: clustered` only.

    Returns:
      The artefact folder: `epoch-0000.npy`, … int32 [steps, batch]. Its manifest counts
      steps, rows and dropped rows by domain group.

    Raises:
      ValueError: clusters of another pairs artefact, a domain smaller than a batch
        (see `check_sizes`), impossible groups, or a user's plan that does not fit (see
        `check_plan`).
    """
    settings = config.plan
    spec = _spec(config, pairs_folder, clusters_folder)

    def build(folder: Path) -> dict[str, Any]:
        pairs = Pairs.open(pairs_folder)
        names, group_of = group_domains(pairs.domains, settings.domain_groups)
        group = group_of[pairs.train.domain]
        if settings.kind == "file":
            epochs = read_plan(Path(settings.path or ""), settings, spec["pairs"])
            check_plan(epochs, group, names)
            for number, steps in enumerate(epochs):
                np.save(_epoch_file(folder, number), steps.astype(np.int32))
        else:
            clusters = Clusters.open(clusters_folder) if clusters_folder else None
            groups = make_groups(group, names, settings, clusters)
            _write_epochs(folder, groups, settings, config.seed)
        return count_plan(Plan(_load_epochs(folder)), group, names, settings)

    return artifacts.run_stage(root, "plan", spec, build)


def _spec(
    config: Config, pairs_folder: str | Path, clusters_folder: str | Path | None
) -> dict[str, Any]:
    """What decides a plan's content; ValueError where it is missing or does not fit."""
    settings = config.plan
    spec = {
        "pairs": artifacts.artifact_fingerprint(pairs_folder),
        "plan": settings,
        "seed": config.seed,
    }
    if settings.kind == "clustered":
        if clusters_folder is None:
            raise ValueError("plan.kind: 'clustered' needs a clusters artefact.")
        check_origin(Path(clusters_folder), f"{clusters_folder}", spec["pairs"])
        spec["clusters"] = artifacts.artifact_fingerprint(clusters_folder)
    if settings.kind == "file":
        path = Path(settings.path or "")
        if not settings.path or not path.exists():
            raise ValueError(f"plan.path: {settings.path}: no such file or folder.")
        spec["file"] = artifacts.hash_files(path)
    return spec


def make_groups(
    group: Int[np.ndarray, "pairs"],
    names: Sequence[str],
    settings: PlanConfig,
    clusters: Clusters | None = None,
) -> list[Group]:
    """The groups that batches are packed from.

    Args:
      group: group number of every training pair.
      names: names of the groups.
      settings: kind of plan, batch size, order, what small domains do.
      clusters: for `kind: clustered`.
    """
    batch = settings.batch_size
    if settings.kind == "shuffled":
        if len(group) < batch:
            raise ValueError(
                f"plan.batch_size: {batch} is more than the {len(group)} training "
                "pairs; lower it or bring more pairs."
            )
        return [Group.whole("all", np.arange(len(group)))]
    sizes = np.bincount(group, minlength=len(names))
    made = []
    for number in check_sizes(names, sizes, batch, settings.min_domain):
        rows, name = np.flatnonzero(group == number), names[number]
        if clusters is None or settings.kind == "by_domain":
            made.append(Group.whole(name, rows))
            continue
        made.append(
            Group.clustered(
                name, rows, clusters.cluster[rows], clusters.centroid, settings.order
            )
        )
    return made


def count_plan(
    plan: Plan,
    group: Int[np.ndarray, "pairs"],
    names: Sequence[str],
    settings: PlanConfig,
) -> dict[str, Any]:
    """Steps, rows and dropped rows of a plan, for its manifest and for `--dry-run`."""
    steps = [len(epoch) for epoch in plan.epochs]
    sizes = np.bincount(group, minlength=len(names))
    used = [
        np.bincount(group[np.asarray(epoch).ravel()], minlength=len(names))
        for epoch in plan.epochs
    ]
    domains = {
        name: {
            "rows": int(sizes[i]),
            "dropped": [int(sizes[i] - epoch[i]) for epoch in used],
        }
        for i, name in enumerate(names)
    }
    small = [n for n, s in zip(names, sizes, strict=True) if 0 < s < plan.batch_size]
    return {
        "batch_size": plan.batch_size,
        "steps": steps,
        "cumulative_steps": [int(end) for end in plan.ends],
        "rows": len(group),
        "dropped": [len(group) - int(epoch.sum()) for epoch in used],
        "domains_left_out": small if settings.kind != "shuffled" else [],
        "domains": domains,
    }


def _write_epochs(
    folder: Path, groups: Sequence[Group], settings: PlanConfig, seed: int
) -> None:
    with progress("pack epochs", settings.epochs) as advance:
        for epoch in range(settings.epochs):
            steps = pack_epoch(groups, settings.batch_size, seed, epoch)
            np.save(_epoch_file(folder, epoch), steps)
            advance(1)


def _load_epochs(folder: Path) -> list[np.ndarray]:
    return [artifacts.load_array(file) for file in sorted(folder.glob("epoch-*.npy"))]


def _epoch_file(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:04d}.npy"
