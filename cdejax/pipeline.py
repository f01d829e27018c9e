"""All stages of a recipe, in order: each finds its inputs, or runs what makes them.

    pairs -> tokens, vectors -> clusters -> plan -> training -> evaluation, export

A run lives in OUTPUT/NAME: `artifacts/` is shared by all variants, each variant has a
folder with its checkpoints, metrics and export, and `report/` compares them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdejax import artifacts
from cdejax.config import Config
from cdejax.config_io import variant
from cdejax.distributed import is_main, main_first, main_only
from cdejax.paths import resolve_folder
from cdejax.preflight import check_inputs, check_pairs, check_sources

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdejax.data.pairs import Pairs
    from cdejax.embedder import Embedder
    from cdejax.training.run_folder import Inputs

_log = logging.getLogger(__name__)
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


@dataclasses.dataclass(frozen=True)
class Stages:
    """Artefact folders of one resolved recipe, made when they are asked for.

    What a run in the recipe's folder began with is kept, even if the code that makes
    artefacts has changed since.
    """

    config: Config

    def _run(self, stage: Callable[..., Path], *inputs: Path | None) -> Path:
        runs = root_of(self.config).glob(f"*/{artifacts.RUN}")
        begun = (artifacts.begun_with(path.parent) for path in runs)
        with artifacts.keeping(set().union(*begun)):
            return stage(self.config, self.folder, *inputs)

    @property
    def folder(self) -> Path:
        """Where artefacts go."""
        return root_of(self.config) / "artifacts"

    def pairs(self) -> Path:
        """Checked and split pairs."""
        from cdejax.data.pairs import pairs_stage

        return self._run(pairs_stage)

    def tokens(self) -> Path:
        """Token rows of the pairs."""
        from cdejax.data.tokens import tokens_stage

        return self._run(tokens_stage, self.pairs())

    def vectors(self) -> Path:
        """Surrogate vectors of the pairs; all processes share an encoder's work."""
        from cdejax.clustering.vectors import vectors_stage

        pairs = main_first("pairs", self.pairs)
        stage = functools.partial(self._run, vectors_stage, pairs)
        if self.config.vectors.method == "encoder":
            return stage()
        return main_first("vectors", stage)

    def clusters(self) -> Path:
        """Clusters of the vectors."""
        from cdejax.clustering.kmeans import clusters_stage

        return self._run(clusters_stage, self.pairs(), self.vectors())

    def plan(self) -> Path:
        """The batch plan."""
        from cdejax.clustering.plan import plan_stage

        clustered = self.config.plan.kind == "clustered"
        clusters = self.clusters() if clustered else None
        return self._run(plan_stage, self.pairs(), clusters)

    def hardness(self) -> Path:
        """Numbers and a picture of how hard the plan's batches are."""
        from cdejax.clustering.hardness import hardness_report
        from cdejax.clustering.kmeans import Clusters
        from cdejax.clustering.plan import Plan
        from cdejax.clustering.vectors import Vectors
        from cdejax.data.pairs import Pairs

        folders = [self.pairs(), self.vectors(), self.clusters(), self.plan()]
        margin = self.config.training.false_negative_margin
        spec = {"seed": self.config.seed, "margin": margin}
        spec |= {path.name: artifacts.artifact_fingerprint(path) for path in folders}

        def build(folder: Path) -> dict[str, Any]:
            pairs, vectors, clusters, plan = folders
            return hardness_report(
                self.config,
                Pairs.open(pairs),
                Vectors.open(vectors),
                Clusters.open(clusters),
                Plan.open(plan),
                folder,
            )

        return artifacts.run_stage(self.folder, "hardness", spec, build)

    def needs_vectors(self) -> bool:
        """Whether training masks false negatives."""
        return self.config.training.false_negative_margin is not None

    def inputs(self) -> Inputs:
        """What training reads; process 0 makes what is missing, the others wait.

        But all of them embed texts with an encoder.
        """
        main_first("pairs", lambda: check_pairs(self.config, self.pairs()))
        if self.needs_vectors() or self.config.plan.kind == "clustered":
            self.vectors()
        return main_first("inputs", self._inputs)

    def _inputs(self) -> Inputs:
        from cdejax.clustering.plan import Plan
        from cdejax.clustering.vectors import Vectors
        from cdejax.data.pairs import Pairs
        from cdejax.data.tokens import Tokens
        from cdejax.training.run_folder import Inputs

        folders = {"pairs": self.pairs(), "tokens": self.tokens(), "plan": self.plan()}
        clustered = self.config.plan.kind == "clustered"
        if self.needs_vectors() or clustered:
            folders["vectors"] = self.vectors()
        if clustered:
            folders["clusters"] = self.clusters()
        pairs = Pairs.open(folders["pairs"])
        return Inputs(
            pairs,
            Tokens.open(folders["tokens"]),
            Plan.open(folders["plan"], pairs.fingerprint),
            Vectors.open(folders["vectors"]) if self.needs_vectors() else None,
            {k: artifacts.artifact_fingerprint(v) for k, v in folders.items()},
        )


def run_pairs(config: Config) -> str:
    """Runs the pairs stage of every variant; the paths, one a line."""
    return _each(config, Stages.pairs)


def run_tfds(config: Config) -> str:
    """Writes the sources of every variant as TFDS datasets; the paths, one a line."""
    from cdejax.data.tfds import tfds_stage

    return _each(config, lambda stages: tfds_stage(stages.config, stages.folder))


def run_tokens(config: Config) -> str:
    """Runs the tokens stage of every variant; the paths, one a line."""
    return _each(config, Stages.tokens)


def run_vectors(config: Config) -> str:
    """Runs the vectors stage of every variant; the paths, one a line."""
    return _each(config, Stages.vectors)


def run_clusters(config: Config) -> str:
    """Runs the clusters stage of every variant; the paths, one a line."""
    return _each(config, Stages.clusters)


def run_plan(config: Config) -> str:
    """Runs the plan stage of every variant; the paths, one a line."""
    return _each(config, Stages.plan)


def _each(config: Config, stage: Callable[[Stages], Path]) -> str:
    variants = variants_of(config).values()
    for resolved in variants:  # before the first of them is read
        check_sources(resolved)
    paths = [stage(Stages(resolved)) for resolved in variants]
    return "\n".join(str(path) for path in dict.fromkeys(paths))


def train(config: Config) -> str:
    """Trains every variant, resuming what was begun; the run folders, one a line."""
    from cdejax.training.run_folder import check_version

    variants = variants_of(config)
    for name, resolved in variants.items():
        check_inputs(resolved)
        check_version(root_of(resolved) / name)
    return "\n".join(str(train_variant(*item)) for item in variants.items())


def train_variant(name: str, config: Config) -> Path:
    """Trains one variant and returns its folder."""
    from cdejax.compilation import keep_compiled
    from cdejax.training import loop

    if config.training.compilation_cache is not None:
        keep_compiled(config.training.compilation_cache)
    inputs = Stages(config).inputs()
    folder = root_of(config) / name
    return loop.train(config, inputs, folder, heldout_score(config, inputs.pairs))


def heldout_score(config: Config, pairs: Pairs) -> Callable[[Any], float] | None:
    """A model to its nDCG@10 on held-out pairs; None where nothing is held out.

    They are those that checkpoints are chosen on, or all if nothing is to be chosen.
    The function holds no weights of its own, and none between two calls.

    Raises:
      ValueError: too few pairs are held out to choose on a part of them.
    """
    if not len(pairs.heldout):
        return None
    from cdejax.retrieval.collections import (
        FEW,
        heldout_collection,
        validation_collection,
    )
    from cdejax.retrieval.evaluate import evaluate_embedder

    chosen_on = validation_collection(pairs, config.validation_share, config.seed)
    collection = chosen_on or heldout_collection(pairs)
    few = len(collection.queries) < FEW
    if config.training.eval_every and few and is_main():
        _log.warning(
            "training.eval_every: a choice of checkpoints on %d queries is mostly "
            "chance; hold out more pairs or raise evaluation.validation_fraction",
            len(collection.queries),
        )

    def score(model: Any) -> float:
        result = evaluate_embedder(
            make_embedder(config, model, "model"),
            collection,
            seed=config.seed,
            batch_size=config.evaluation.batch_size,
            ignore_identical_ids=config.evaluation.ignore_identical_ids,
        )
        return float(result.scores["nDCG@10"].mean())

    return score


def make_embedder(config: Config, model: Any, name: str) -> Embedder:
    """A model in memory as an embedder, with the recipe's prefixes and limits.

    Prefixes that the recipe does not set are the prompts of the model's start.
    """
    from cdejax.data.tokenizer import Tokenizer
    from cdejax.embedder import Embedder
    from cdejax.prompts import tokens_of

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
    """Folder of a variant that was trained to its end.

    Raises:
      ValueError: it was not, or by another recipe or version than this.
    """
    from cdejax.training.run_folder import check_trained, check_version

    folder = root_of(config) / name
    check_version(folder)  # before artefacts are made again for it
    check_trained(folder, config, Stages(config).inputs())
    return folder


def trained_model(config: Config, name: str) -> Any:
    """A variant's model with its best parameters.

    Raises:
      ValueError: it was not trained, or by another recipe than this.
    """
    from flax import nnx

    from cdejax.training.start import build_model, trained_params

    folder = trained_folder(config, name)
    graphdef, params = nnx.split(build_model(config))
    return nnx.merge(graphdef, trained_params(folder, params))


def export(config: Config, *, onnx: bool = False, int8: bool = False) -> str:
    """Exports every variant; the folders, one a line.

    Args:
      config: the recipe.
      onnx: add ONNX graphs to the folders.
      int8: 8-bit ones too.

    Raises:
      ValueError: ONNX graphs are asked for that cannot be made, a variant was not
        trained, or an export does not give its vectors.
    """
    variants = variants_of(config)
    if onnx:
        _check_onnx(variants)
    folders = [export_variant(*item) for item in variants.items()]
    if onnx:
        from cdejax.export.onnx import add_onnx

        for folder in folders:
            add_onnx(folder, int8=int8, overwrite=True)
    return "\n".join(str(path) for path in folders)


def _check_onnx(variants: dict[str, Config]) -> None:
    """Refuses, before any export, what has no ONNX graph."""
    from cdejax.export.onnx import require_libraries

    require_libraries()
    kinds = {name: resolved.model.kind for name, resolved in variants.items()}
    if contextual := [name for name, kind in kinds.items() if kind == "contextual"]:
        others = [name for name in kinds if name not in contextual]
        advice = f"; `--variant {others[0]}` exports that one" if others else ""
        raise ValueError(
            f"--format onnx: {', '.join(contextual)} is contextual and reads a context "
            "beside the text, but an ONNX graph takes text alone: export without it, "
            f"then `cdejax bake` with a context, then `cdejax onnx`{advice}"
        )


def export_variant(name: str, config: Config) -> Path:
    """Exports one variant to its folder `export`, checked before it appears."""
    from cdejax.described import describe_variant
    from cdejax.export.check import check_export
    from cdejax.export.folder import export_model

    model = trained_model(config, name)
    embedder = make_embedder(config, model, name)
    return export_model(
        model,
        resolve_folder(config.model.encoder),
        root_of(config) / name / "export",
        prompts=embedder.prompts,
        max_length=embedder.max_length,
        context_length=embedder.context_length,
        metadata=describe_variant(name, config),
        check=functools.partial(check_export, embedder),
    )


def evaluate(config: Config) -> RenderableType:
    """Evaluates every variant, its start and BM25; the table and the paths."""
    return report(config)


def report(config: Config) -> RenderableType:
    """Compares all systems, evaluating what has not been; the table and the paths."""
    from cdejax.scores import report_recipe

    return report_recipe(config)


def run(config: Config) -> RenderableType | None:
    """Runs every stage of every variant; the report (None but on process 0)."""
    from cdejax.retrieval.collections import collection_folders
    from cdejax.scores import evaluate_recipe
    from cdejax.training.run_folder import check_version

    variants = variants_of(config)
    for name, resolved in variants.items():  # what is missing stops us now
        check_inputs(resolved)
        check_version(root_of(resolved) / name)
        collection_folders(resolved.evaluation)
    for name, resolved in variants.items():
        _log.info("variant %s", name)
        train_variant(name, resolved)

    def conclude() -> RenderableType:
        for folder in evaluate_recipe(config):  # the exports' cards tell the figures
            _log.info("evaluated: %s", folder)
        export(config)
        return report(config)

    return main_only("conclusion", conclude)


def dry_run(config: Config) -> RenderableType:
    """Prepares the data of every variant and says what training would do."""
    from cdejax.dry_run import describe

    return describe(config)
