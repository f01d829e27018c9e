"""Artefacts of a recipe: each stage finds its inputs or runs the stages they need.

    pairs -> tokens, vectors -> clusters -> plan -> training -> evaluation, export

All files are in OUTPUT/NAME: `artifacts/` is shared by all variants, each variant has a
folder with its checkpoints, metrics and export, and `report/` compares them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from cdejax.clustering.hardness import hardness_stage
from cdejax.clustering.kmeans import clusters_stage
from cdejax.clustering.plan import Plan, plan_stage
from cdejax.clustering.plans.base import Need
from cdejax.clustering.plans.registry import planner_of
from cdejax.clustering.vectors import Vectors, vectors_stage
from cdejax.config import Config
from cdejax.config.load import variant
from cdejax.data.pairs import Pairs, pairs_stage
from cdejax.data.tokens import Tokens, tokens_stage
from cdejax.folders.paths import resolve_folder
from cdejax.recipe.preflight import check_pairs
from cdejax.runtime.processes import in_lockstep, main_first
from cdejax.storage import artifacts
from cdejax.training.from_recipe import loss_settings
from cdejax.training.run_folder import Inputs

ONLY = "model"
"""Name of the variant folder of a recipe without variants."""


def root_of(config: Config) -> Path:
    """Folder of everything that a recipe writes."""
    return Path(config.output) / config.name


def variants_of(config: Config) -> dict[str, Config]:
    """The resolved recipe of each variant; without variants, the recipe itself.

    Raises:
      ValueError: the variants would be compared on different queries.
    """
    if not config.variants:
        return {ONLY: config}
    found = {name: variant(config, name) for name in config.variants}
    shares = {name: resolved.validation_share for name, resolved in found.items()}
    if len(set(shares.values())) > 1:
        said = ", ".join(f"{name} {share}" for name, share in shares.items())
        raise ValueError(
            "evaluation.validation_fraction: the variants choose checkpoints on "
            f"different shares of the held-out pairs ({said}; 0 without "
            "training.eval_every), so their figures would be of different queries; "
            "set it once for the whole recipe"
        )
    return found


Found = dict[Callable[..., Path], Path]
"""Artefact folders, by the stage that makes them."""
_command: ContextVar[dict[str, Found] | None] = ContextVar("command", default=None)
"""Artefacts that the current command has looked up, by the recipe's fingerprint."""


@contextlib.contextmanager
def one_lookup() -> Iterator[None]:
    """Context in which every stage of a recipe is looked up only once.

    A command thus sees its inputs as they were when it first read them.
    """
    if _command.get() is not None:
        yield
        return
    token = _command.set({})
    try:
        yield
    finally:
        _command.reset(token)


@dataclasses.dataclass(frozen=True)
class Stages:
    """Artefact folders of one resolved recipe, made on first access.

    Each stage is looked up once: its inputs (sources, models, settings) are not read
    again by the same object, nor by another one inside `one_lookup`. Artefacts that a
    run in the recipe's folder started with are reused even if the code that makes them
    has changed since.
    """

    config: Config
    _found: Found = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        known = _command.get()
        if known is not None:
            found = known.setdefault(artifacts.fingerprint(self.config), self._found)
            object.__setattr__(self, "_found", found)

    def _run(self, stage: Callable[..., Path], *inputs: Any) -> Path:
        # A collective stage must be entered by all processes, even if found before.
        if in_lockstep() or stage not in self._found:
            self._found[stage] = self._look_up(stage, *inputs)
        return self._found[stage]

    def _look_up(self, stage: Callable[..., Path], *inputs: Any) -> Path:
        runs = root_of(self.config).glob(f"*/{artifacts.RUN}")
        begun = (artifacts.begun_with(path.parent) for path in runs)
        with artifacts.keep_artifacts(set().union(*begun)):
            return stage(self.config, self.folder, *inputs)

    @property
    def folder(self) -> Path:
        """Folder of the artefacts."""
        return root_of(self.config) / "artifacts"

    def pairs(self) -> Path:
        """Pairs, checked and split."""
        return self._run(pairs_stage)

    def tokens(self) -> Path:
        """Token rows of the pairs."""
        return self._run(tokens_stage, self.pairs())

    def vectors(self) -> Path:
        """Surrogate vectors of the pairs; with an encoder, all processes share work."""
        pairs = main_first("pairs", self.pairs)
        stage = functools.partial(self._run, vectors_stage, pairs)
        if self.config.vectors.method == "encoder":
            return stage()
        return main_first("vectors", stage)

    def clusters(self) -> Path:
        """Clusters of the vectors."""
        return self._run(clusters_stage, self.pairs(), self.vectors())

    def plan(self) -> Path:
        """The batch plan."""
        needs = planner_of(self.config.plan).needs
        folders = {need: self._needed(need) for need in needs}
        return self._run(plan_stage, self.pairs(), folders)

    def hardness(self) -> Path:
        """Figures and a chart of the hardness of the plan's batches."""
        folders = self.pairs(), self.vectors(), self.clusters(), self.plan()
        return self._run(hardness_stage, *folders)

    def model(self) -> Path:
        """Folder of the encoder that training starts from (not an artefact)."""
        return resolve_folder(self.config.model.encoder, "model.encoder")

    def _needed(self, need: Need) -> Path:
        ways = {"vectors": self.vectors, "clusters": self.clusters, "model": self.model}
        return ways[need]()

    def needs_vectors(self) -> bool:
        """Whether the false-negative mask or the objective needs surrogate vectors."""
        return loss_settings(self.config).needs_surrogate

    def _needs(self) -> set[Need]:
        """What the plan and training depend on besides pairs and tokens."""
        needs = set(planner_of(self.config.plan).needs)
        if "clusters" in needs or self.needs_vectors():
            needs.add("vectors")
        return needs

    def inputs(self) -> Inputs:
        """The inputs of training; process 0 makes what is missing, the others wait.

        Vectors from an encoder are the exception: all processes compute them.
        """
        main_first("pairs", lambda: check_pairs(self.config, self.pairs()))
        if "vectors" in self._needs():
            self.vectors()
        return main_first("inputs", self._inputs)

    def _inputs(self) -> Inputs:
        folders = {"pairs": self.pairs(), "tokens": self.tokens(), "plan": self.plan()}
        surrogate: tuple[Need, ...] = ("vectors", "clusters")
        folders |= {n: self._needed(n) for n in surrogate if n in self._needs()}
        pairs = Pairs.open(folders["pairs"])
        return Inputs(
            pairs,
            Tokens.open(folders["tokens"]),
            Plan.open(folders["plan"], pairs.fingerprint),
            Vectors.open(folders["vectors"]) if self.needs_vectors() else None,
            {k: artifacts.artifact_fingerprint(v) for k, v in folders.items()},
            self.folder,
        )
