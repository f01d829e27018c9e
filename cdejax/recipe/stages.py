"""Artefacts of a recipe: each stage finds its inputs, or runs what makes them.

    pairs -> tokens, vectors -> clusters -> plan -> training -> evaluation, export

A run lives in OUTPUT/NAME: `artifacts/` is shared by all variants, each variant has a
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
from cdejax.training.run_folder import Inputs
from cdejax.training.setup import loss_settings

ONLY = "model"
"""Folder of a recipe without variants."""


def root_of(config: Config) -> Path:
    """Folder of everything that a recipe makes."""
    return Path(config.output) / config.name


def variants_of(config: Config) -> dict[str, Config]:
    """The resolved recipe of each variant; a recipe without any is its only one.

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
"""Artefact folders by the stage that makes them."""
_command: ContextVar[dict[str, Found] | None] = ContextVar("command", default=None)
"""What the command at work has found, by the fingerprint of a recipe."""


@contextlib.contextmanager
def one_lookup() -> Iterator[None]:
    """Looks every stage of a recipe up once, whoever asks for it inside.

    A command sees its inputs as they were when it first read them.
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
    """Artefact folders of one resolved recipe, made when they are asked for.

    Each stage is looked up once: what decides it (sources, models, settings) is not
    read again for the same object, nor for another one inside `one_lookup`. What a run
    in the recipe's folder began with is kept, even if the code that makes artefacts has
    changed since.
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
        # What all processes do together, none of them may leave out on its own.
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
        """Where artefacts go."""
        return root_of(self.config) / "artifacts"

    def pairs(self) -> Path:
        """Checked and split pairs."""
        return self._run(pairs_stage)

    def tokens(self) -> Path:
        """Token rows of the pairs."""
        return self._run(tokens_stage, self.pairs())

    def vectors(self) -> Path:
        """Surrogate vectors of the pairs; all processes share an encoder's work."""
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
        """Numbers and a picture of how hard the plan's batches are."""
        folders = self.pairs(), self.vectors(), self.clusters(), self.plan()
        return self._run(hardness_stage, *folders)

    def model(self) -> Path:
        """Folder of the encoder that training starts from; not an artefact of ours."""
        return resolve_folder(self.config.model.encoder, "model.encoder")

    def _needed(self, need: Need) -> Path:
        ways = {"vectors": self.vectors, "clusters": self.clusters, "model": self.model}
        return ways[need]()

    def needs_vectors(self) -> bool:
        """Whether the false-negative mask or the objective needs a surrogate."""
        return loss_settings(self.config).needs_surrogate

    def _needs(self) -> set[Need]:
        """What the plan and training depend on, beside pairs and tokens."""
        needs = set(planner_of(self.config.plan).needs)
        if "clusters" in needs or self.needs_vectors():
            needs.add("vectors")
        return needs

    def inputs(self) -> Inputs:
        """What training reads; process 0 makes what is missing, the others wait.

        But all of them embed texts with an encoder.
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
