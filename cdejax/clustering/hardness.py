"""Hardness of the planned batches, measured by the surrogate's scores.

Clusters are described by their sizes and their mean within-cluster cosine. Batches are
described by two figures from the surrogate's in-batch scores: the share of queries
whose own document scores highest (top-1 rate), and the share of scores that the
false-negative mask would remove (spec 4; GISTEmbed). The planned batches are compared
with random ones, drawn within domains and from all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cdejax.clustering.groups import TrainingPairs
from cdejax.clustering.hardness_plot import draw
from cdejax.clustering.kmeans import Clusters
from cdejax.clustering.plan import Plan
from cdejax.clustering.vectors import Vectors
from cdejax.config import Config
from cdejax.data.known_positives import KnownPositives
from cdejax.data.pairs import Pairs
from cdejax.storage import artifacts

BATCHES = 8
"""Maximum number of batches examined per domain."""
QUERIES = 1024
"""Maximum number of queries examined per batch (against all of its documents)."""
_BLOCK = 65536


@dataclass(frozen=True)
class PairArrays:
    """The arrays of the training pairs that the report needs."""

    queries: Float[np.ndarray, "queries dim"]
    documents: Float[np.ndarray, "documents dim"]
    query: Int[np.ndarray, "pairs"]
    document: Int[np.ndarray, "pairs"]
    query_content: Int[np.ndarray, "queries"]
    document_content: Int[np.ndarray, "documents"]
    group: Int[np.ndarray, "pairs"]
    """Domain group of each pair."""
    known: KnownPositives
    """Documents known to be relevant to each query."""


def hardness_stage(
    config: Config,
    root: str | Path,
    pairs: Path,
    vectors: Path,
    clusters: Path,
    plan: Path,
) -> Path:
    """Writes the report on a plan (see `hardness_report`), or reuses an existing one.

    Args:
      config: the recipe.
      root: folder of all artefacts.
      pairs: the pairs artefact.
      vectors: its vectors artefact.
      clusters: its clusters artefact.
      plan: its plan artefact.

    Returns:
      The artefact folder: `hardness.json`, `hardness.png`.
    """
    margin = config.training.false_negative_margin
    spec: dict[str, Any] = {"seed": config.seed, "margin": margin}
    for path in (pairs, vectors, clusters, plan):
        spec[path.name] = artifacts.artifact_fingerprint(path)

    def build(folder: Path) -> dict[str, Any]:
        return hardness_report(
            config,
            Pairs.open(pairs),
            Vectors.open(vectors),
            Clusters.open(clusters),
            Plan.open(plan),
            folder,
        )

    return artifacts.run_stage(root, "hardness", spec, build)


def hardness_report(
    config: Config,
    pairs: Pairs,
    vectors: Vectors,
    clusters: Clusters | None,
    plan: Plan,
    folder: str | Path,
) -> dict[str, Any]:
    """Writes `hardness.json` and `hardness.png` to a folder; returns the figures.

    Args:
      config: the recipe; read are the mask's margin (0 without a mask), the domain
        groups and the sampling seed.
      pairs: the pairs artefact.
      vectors: its surrogate vectors.
      clusters: its clusters, if there are any.
      plan: its batch plan; only the first epoch is examined.
      folder: the folder to write to.
    """
    train = pairs.train
    grouped = TrainingPairs.of(pairs, config.plan.domain_groups)
    arrays = PairArrays(
        vectors.queries,
        vectors.documents,
        np.asarray(train.query),
        np.asarray(train.document),
        np.asarray(pairs.query_content),
        np.asarray(pairs.document_content),
        grouped.group,
        pairs.known,
    )
    margin = config.training.false_negative_margin or 0.0
    numbers = batches_report(arrays, plan.epochs[0], grouped.names, margin, config.seed)
    numbers["false_negative_margin"] = margin
    if clusters is not None:
        numbers["clusters"] = clusters_report(arrays, np.asarray(clusters.cluster))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(folder / "hardness.json", numbers)
    draw(numbers, folder / "hardness.png")
    return numbers


def clusters_report(
    arrays: PairArrays, cluster: Int[np.ndarray, "pairs"]
) -> dict[str, Any]:
    """Cluster sizes, and mean cosines within clusters, within domains and overall.

    Mean cosines are exact: they cover all combinations of two different rows of a set,
    and each set is weighted by its number of rows.
    """
    sizes = np.bincount(cluster)
    sizes = sizes[sizes > 0]
    everything = np.zeros(len(cluster), np.int64)
    sets = {"cluster": cluster, "domain": arrays.group, "all": everything}
    sides = {
        "queries": (arrays.queries, arrays.query),
        "documents": (arrays.documents, arrays.document),
    }
    quantiles = np.quantile(sizes, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
    return {
        "clusters": len(sizes),
        "mean_size": float(sizes.mean()),
        "size_quantiles": dict(
            zip(
                ("min", "p5", "p25", "median", "p75", "p95", "max"),
                quantiles.tolist(),
                strict=True,
            )
        ),
        "sizes": np.sort(sizes).tolist(),
        "mean_cosine": {
            side: {name: mean_cosine(x, rows, ids) for name, ids in sets.items()}
            for side, (x, rows) in sides.items()
        },
    }


def mean_cosine(
    x: Float[np.ndarray, "rows dim"],
    rows: Int[np.ndarray, "pairs"],
    ids: Int[np.ndarray, "pairs"],
) -> float:
    """Mean cosine between different pairs of a set, sets weighted by their size.

    For n unit vectors with sum s it is (‖s‖² − n) / (n (n − 1)). Sets of one pair are
    left out; NaN if all sets are.

    Args:
      x: unit vectors.
      rows: row of `x` of each pair.
      ids: id of the set of each pair.
    """
    sizes = np.bincount(ids).astype(np.float64)
    sums = np.zeros((len(sizes), x.shape[1]))
    for i in range(0, len(rows), _BLOCK):
        np.add.at(sums, ids[i : i + _BLOCK], x[rows[i : i + _BLOCK]])
    several = sizes > 1
    n = sizes[several]
    cosines = ((sums[several] ** 2).sum(axis=1) - n) / (n * (n - 1))
    return float(np.average(cosines, weights=n)) if len(n) else float("nan")


def batches_report(
    arrays: PairArrays,
    steps: Int[np.ndarray, "steps batch"],
    names: Sequence[str],
    margin: float,
    seed: int,
) -> dict[str, Any]:
    """Hardness of planned batches compared with random ones.

    At most `BATCHES` batches per domain are sampled. In the overall figures a domain is
    weighted by its share of the planned steps.

    Args:
      arrays: the training pairs.
      steps: the planned batches of an epoch.
      names: names of the domain groups.
      margin: margin of the false-negative mask.
      seed: seed of the samples.

    Returns:
      {"planned" | "random_in_domain" | "random": figures}, and the first two by name
      under "domains"; figures are those of `batch_hardness`.
    """
    rng = np.random.default_rng(seed)
    first = arrays.group[steps[:, 0]]
    mixed = (arrays.group[steps] != first[:, None]).any(axis=1)
    label = np.where(mixed, len(names), first)
    batch = steps.shape[1]
    domains, weights = {}, []
    for number in np.unique(label):
        of_domain = np.flatnonzero(label == number)
        some = rng.permutation(of_domain)[:BATCHES]
        pool = np.flatnonzero(arrays.group == number)
        if number == len(names):
            pool = np.arange(len(arrays.group))
        domains["mixed" if number == len(names) else names[number]] = {
            "steps": len(of_domain),
            "planned": _mean([batch_hardness(arrays, steps[s], margin) for s in some]),
            "random_in_domain": _random(arrays, pool, batch, len(some), margin, rng),
        }
        weights.append(len(of_domain))
    everything = np.arange(len(arrays.group))
    return {
        "batch_size": batch,
        "steps": len(steps),
        "planned": _mean([d["planned"] for d in domains.values()], weights),
        "random_in_domain": _mean(
            [d["random_in_domain"] for d in domains.values()], weights
        ),
        "random": _random(arrays, everything, batch, 2 * BATCHES, margin, rng),
        "domains": domains,
    }


def batch_hardness(
    arrays: PairArrays, rows: Int[np.ndarray, "batch"], margin: float
) -> dict[str, float]:
    """Figures of one batch, from its first `QUERIES` queries and all documents.

    Negatives are the in-batch documents except those of `_no_negatives`, which training
    excludes whatever their score.

    Returns:
      top1: share of queries whose own document scores above all negatives.
      masked: share of the negatives whose score is at least that of the query's own
        document plus `margin`.
      duplicates: share of the off-diagonal cells that are not negatives.
    """
    some = rows[:QUERIES]
    documents = arrays.documents[arrays.document[rows]]
    scores = arrays.queries[arrays.query[some]] @ documents.T
    own = np.arange(len(some))
    same = _no_negatives(arrays, rows, len(some))
    positive = scores[own, own].copy()
    masked = ~same & (scores >= positive[:, None] + np.float32(margin))
    others = np.where(same, -np.inf, scores)
    return {
        "top1": float((positive > others.max(axis=1)).mean()),
        "masked": float(masked.sum() / max((~same).sum(), 1)),
        "duplicates": float(
            (same.sum() - len(some)) / max(len(some) * (len(rows) - 1), 1)
        ),
    }


def _no_negatives(
    arrays: PairArrays, rows: Int[np.ndarray, "batch"], queries: int
) -> Bool[np.ndarray, "queries batch"]:
    """Mask of the documents that training never uses as negatives of the first queries.

    They are known to be relevant to the query (its own document included), or have the
    query's text.
    """
    query = arrays.query_content[arrays.query[rows]]
    document = arrays.document_content[arrays.document[rows]]
    known = arrays.known.beyond_batch(query, document, np.zeros(0, np.int64))
    some = query[:queries, None]
    out = (some == query) | (some == document)
    out |= document[:queries, None] == document
    for ids in known[:queries].T:
        out |= ids[:, None] == document
    return out


def _random(
    arrays: PairArrays,
    pool: Int[np.ndarray, "pool"],
    batch: int,
    count: int,
    margin: float,
    rng: np.random.Generator,
) -> dict[str, float]:
    batches = [rng.choice(pool, batch, replace=False) for _ in range(count)]
    return _mean([batch_hardness(arrays, rows, margin) for rows in batches])


def _mean(
    figures: Sequence[dict[str, float]], weights: Sequence[float] | None = None
) -> dict[str, float]:
    return {
        key: float(np.average([f[key] for f in figures], weights=weights))
        for key in figures[0]
    }
