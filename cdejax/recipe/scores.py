"""Scores of a recipe: every variant, the model it started from, and BM25."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from cdejax.clustering.plans.registry import planner_of
from cdejax.config import Config
from cdejax.data.pairs import Pairs
from cdejax.data.prompts import tokens_of
from cdejax.recipe.preflight import check_measures
from cdejax.recipe.stages import Stages, one_lookup, root_of, variants_of
from cdejax.recipe.variant import make_embedder, trained_folder, trained_model
from cdejax.retrieval.collections import (
    collection_folders,
    evaluation_collections,
    validation_collection,
    validation_rows,
)
from cdejax.retrieval.evaluate import evaluate_all, evaluate_bm25
from cdejax.retrieval.report import FILES, read_results, table, write_report
from cdejax.storage import artifacts, durable
from cdejax.training.run_model import BEST, build_model, run_files, start_files

if TYPE_CHECKING:
    from cdejax.data.beir import Collection
    from cdejax.retrieval.evaluate import Result

START = "untrained start"


@dataclasses.dataclass(frozen=True)
class System:
    """A system to evaluate."""

    name: str
    config: Config
    """The resolved recipe that it belongs to."""
    kind: str
    """`bm25`, `start` or `trained`."""
    variant: str = ""

    def spec(self) -> dict[str, Any]:
        """What its scores depend on besides the collections."""
        config = self.config
        measures = config.evaluation.measures
        spec = {"system": self.name, "seed": config.seed, "measures": measures}
        if self.kind == "bm25":
            return spec
        spec |= {"model": config.model, "tokens": tokens_of(config)}
        spec |= {"files": start_files(config)["encoder"]}
        spec |= {"dtype": config.training.dtype, "contexts": config.evaluation.contexts}
        if self.kind == "trained":
            spec["run"] = run_files(trained_folder(config, self.variant))
        return spec


def systems_of(config: Config) -> list[System]:
    """BM25, each distinct model that training starts from, and every variant."""
    found, starts = [], {}
    variants = variants_of(config)
    if config.evaluation.bm25:
        found.append(System("BM25", next(iter(variants.values())), "bm25"))
    for name, resolved in variants.items():
        model = artifacts.fingerprint([resolved.model, tokens_of(resolved)])
        starts.setdefault(model, (name, resolved))
    kinds = [resolved.model.kind for _, resolved in starts.values()]
    for name, resolved in starts.values():
        alone = kinds.count(resolved.model.kind) == 1
        label = resolved.model.kind if alone else f"of {name}"
        shown = f"{START} ({label})" if len(starts) > 1 else START
        found.append(System(shown, resolved, "start"))
    for name, resolved in variants.items():
        found.append(System(name, resolved, "trained", name))
    return found


def evaluate_recipe(config: Config) -> Iterator[Path]:
    """Evaluates each system unless already done; yields its artefact folder."""
    found: dict[str, dict[str, Collection]] = {}
    for system in systems_of(config):
        what = _collections_spec(system.config)
        key, spec = artifacts.fingerprint(what), system.spec() | what

        def build(
            folder: Path, system: System = system, key: str = key
        ) -> Mapping[str, Any]:
            if key not in found:
                found[key] = _collections(system.config)
            return _evaluate(system, found[key], folder)

        yield artifacts.run_stage(
            Stages(system.config).folder, "evaluation", spec, build
        )


def known_results(config: Config, variant: str) -> list[Result]:
    """A trained variant's latest results, if it was evaluated, without computing any.

    Args:
      config: the variant's resolved recipe.
      variant: its name.
    """
    try:
        what = _collections_spec(config)
    except ValueError:  # a collection is missing, so nothing was scored on it
        return []
    spec = System(variant, config, "trained", variant).spec() | what
    wanted = json.loads(json.dumps(artifacts.jsonable(spec)))
    found = []
    for file in Stages(config).folder.glob(f"evaluation-*/{artifacts.MANIFEST}"):
        manifest = artifacts.read_manifest(file.parent)
        if manifest["spec"] == wanted:
            found.append((manifest["created"], file.parent))
    return read_results(max(found)[1]) if found else []


@one_lookup()
def evaluate(config: Config) -> RenderableType:
    """Evaluates all systems; returns a table of the scores and their folders."""
    check_measures(config)
    folders = list(evaluate_recipe(config))
    results = _in_order(folders)
    shown = table(results, **_compared(config, results))
    return Group(shown, Text("\n".join(f"evaluation: {path}" for path in folders)))


@one_lookup()
def report(config: Config) -> RenderableType:
    """Writes report/ from the evaluations; returns the table and the files' paths.

    Systems that have not been evaluated are evaluated first.
    """
    results = _in_order(evaluate_recipe(config))
    folder, compared = root_of(config) / "report", _compared(config, results)
    durable.write_together(folder, lambda f: write_report(results, f, **compared))
    lines = [f"{kind}: {folder / name}" for kind, name in FILES.items()]
    for name, resolved in variants_of(config).items():
        if "clusters" in planner_of(resolved.plan).needs:
            picture = Stages(resolved).hardness() / "hardness.png"
            lines.append(f"hardness of {name}: {picture}")
        export = root_of(config) / name / "export"
        if export.is_dir():
            lines.append(f"export of {name}: {export}")
    return Group(table(results, **compared), Text("\n".join(lines)))


def _in_order(folders: Iterable[Path]) -> list[Result]:
    """All results, grouped by collection."""
    results = [result for folder in folders for result in read_results(folder)]
    order = list(dict.fromkeys(result.collection for result in results))
    return sorted(results, key=lambda result: order.index(result.collection))


def _compared(config: Config, results: Sequence[Result]) -> dict[str, Any]:
    """How scores are compared: the baseline and the number of resamples."""
    start = next((r.system for r in results if r.system.startswith(START)), None)
    settings = {"resamples": config.evaluation.bootstrap, "seed": config.seed}
    return {"baseline": start, **settings}


def _evaluate(
    system: System, collections: Mapping[str, Collection], folder: Path
) -> dict[str, Any]:
    results = list(_results(system, collections))
    write_report(results, folder, resamples=system.config.evaluation.bootstrap)
    return {
        f"{result.system}, {result.collection}": result.scores[result.primary].mean()
        for result in results
    }


def _results(system: System, collections: Mapping[str, Collection]) -> Iterator[Result]:
    config = system.config
    if system.kind == "bm25":
        for name, collection in collections.items():
            yield evaluate_bm25(
                collection,
                system=system.name,
                name=name,
                ignore_identical_ids=config.evaluation.ignore_identical_ids,
                measures=config.evaluation.measures,
            )
        return
    start = system.kind == "start"
    model = build_model(config) if start else trained_model(config, system.variant)
    results = evaluate_all(
        make_embedder(config, model, system.name),
        collections,
        dataclasses.replace(config.evaluation, bm25=False),
        system=system.name,
        seed=config.seed,
        show_progress=True,
    )
    chosen = None if start else _checkpoint(system)
    told = {"checkpoint": chosen} if chosen else {}
    for result in results:
        yield dataclasses.replace(result, settings=result.settings | told)


def _checkpoint(system: System) -> str | None:
    """A note on the selected checkpoint and the queries it was selected on.

    None without checkpoint selection: the last checkpoint is evaluated.
    """
    config, best = system.config, root_of(system.config) / system.variant / BEST
    pairs = Pairs.open(Stages(config).pairs())
    on = validation_collection(pairs, config.validation_share, config.seed)
    if on is None:
        return None
    step = artifacts.read_json(best / "best.json")["step"]
    return (
        f"{system.name}: checkpoint of step {step:,}, the best on {len(on.queries):,} "
        "other held-out queries"
    )


def _collections(config: Config) -> dict[str, Collection]:
    pairs = Pairs.open(Stages(config).pairs())
    validation = validation_rows(pairs, config.validation_share, config.seed)
    return evaluation_collections(config.evaluation, pairs, validation)


def _collections_spec(config: Config) -> dict[str, Any]:
    """What identifies the collections of an evaluation."""
    settings = config.evaluation
    return {
        "collections": _collections_hash(config),
        "heldout": [settings.heldout, settings.heldout_by_domain],
        "validation": config.validation_share,
        "unknown_ids": settings.unknown_ids,
        "ignore_identical_ids": settings.ignore_identical_ids,
    }


def _collections_hash(config: Config) -> str:
    hashed = artifacts.hash_files(*collection_folders(config.evaluation))
    pairs = artifacts.artifact_fingerprint(Stages(config).pairs())
    return artifacts.fingerprint([hashed, pairs, config.evaluation.collections])
