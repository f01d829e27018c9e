"""Metadata of a recipe's export for its model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdejax.config import Config
from cdejax.recipe.scores import known_results
from cdejax.recipe.stages import ONLY, Stages
from cdejax.retrieval.measures import measure_of
from cdejax.storage.artifacts import jsonable, read_manifest

if TYPE_CHECKING:
    from cdejax.retrieval.evaluate import Result


def describe_variant(name: str, config: Config) -> dict[str, Any]:
    """Metadata of a trained variant for `cdejax.export.card.model_card`.

    Args:
      name: name of the variant.
      config: its resolved recipe.

    Returns:
      Name, base model, data sources with their licences, number of pairs, the variant's
      whole recipe, the command that evaluates it, and the scores of any existing
      evaluations.
    """
    alone = name == ONLY
    options = "" if alone else f" --variant {name}"
    recipe = jsonable(config) | {"variants": {} if alone else {name: {}}}
    metadata = {
        "name": f"{config.name}/{name}",
        "base_model": config.model.encoder,
        "data": [
            {"path": source.path, "license": source.license}
            for source in config.data.sources
        ],
        "pairs": read_manifest(Stages(config).pairs())["counts"]["train_rows"],
        "recipe": recipe,
        "evaluation": f"cdejax evaluate --config recipe.yaml{options}",
    }
    results = known_results(config, name)
    if not results:
        return metadata
    metadata["scores"] = _scores(results, config)
    if chosen := results[0].settings.get("checkpoint"):
        metadata["Checkpoint"] = chosen
    return metadata


def _scores(results: Sequence[Result], config: Config) -> dict[str, str]:
    """Mean scores by collection and system, with an interval for the main measure."""
    scores = {}
    for result in results:
        which = f"{result.collection}: {result.system}, {len(result.query_ids)} queries"
        means = {
            measure_of(name).label: f"{float(x.mean()):.4f}"
            for name, x in result.scores.items()
        }
        main = result.primary
        found = result.interval(main, config.evaluation.bootstrap, config.seed)
        means[measure_of(main).label] += f" [{found.low:.4f}, {found.high:.4f}]"
        scores[which] = ", ".join(f"{name} {mean}" for name, mean in means.items())
    return scores
