"""Retrieval evaluation of embedders and of BM25, query by query."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cdejax.config import EvaluationConfig
from cdejax.data.beir import Collection
from cdejax.embedding.embedder import Embedder
from cdejax.retrieval.bm25 import BM25
from cdejax.retrieval.bootstrap import Interval, interval
from cdejax.retrieval.contexts import ContextKind, make_context
from cdejax.retrieval.identical import own_documents, ranked
from cdejax.retrieval.measures import DEFAULT, measure_of
from cdejax.retrieval.metrics import per_query
from cdejax.retrieval.search import search

DEPTH = 1000
"""Length of the ranked lists, over which AP is computed."""


@dataclass(frozen=True)
class Result:
    """The scores of one system on one collection."""

    system: str
    collection: str
    query_ids: list[str]
    scores: dict[str, Float[np.ndarray, "queries"]]
    """Scores per query, by measure."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the scores depend on: prompts, length limit, dtype, context, depth, …

    `own_documents` counts the queries whose own document is left out of their ranking,
    `unknown_ids` the judgments that were dropped since they refer to no text.
    """

    @property
    def primary(self) -> str:
        """The main measure of the result: the first one."""
        return next(iter(self.scores))

    def interval(self, measure: str, resamples: int = 2000, seed: int = 0) -> Interval:
        """The mean of a measure with its 95 % bootstrap interval."""
        return interval(self.scores[measure], resamples, seed)


def evaluate_embedder(
    embedder: Embedder,
    collection: Collection,
    *,
    system: str | None = None,
    name: str = "collection",
    context: ContextKind = "corpus",
    other: Collection | None = None,
    seed: int = 0,
    batch_size: int = 128,
    show_progress: bool = False,
    ignore_identical_ids: bool = False,
    measures: Sequence[str] = DEFAULT,
) -> Result:
    """Evaluates exact search with an embedder, scored per query.

    Vectors are compared by the embedder's similarity function, cosine or dot product. A
    document identical to the query is left out of its ranking (see
    `cdejax.retrieval.identical.own_documents`).

    Args:
      embedder: a biencoder or contextual model.
      collection: documents, queries and judgments.
      system: the system's name in reports (default: the embedder's name).
      name: the collection's name in reports.
      context: contextual models: where the context comes from (see `make_context`).
      other: the collection that the context `other-domain` is drawn from.
      seed: seed of the context's sample.
      batch_size: number of texts encoded at once.
      show_progress: show progress bars with rate and remaining time.
      ignore_identical_ids: leave out documents with the query's id whatever their text.
      measures: names, as in `nDCG@10` (see `cdejax.retrieval.measures`).

    Raises:
      ValueError: the embedder compares vectors by a distance, or there is no such
        measure.
    """
    if embedder.similarity_fn_name not in ("cosine", "dot"):
        raise ValueError(
            f"{embedder.name} compares vectors by {embedder.similarity_fn_name}; "
            "search here is by cosine or dot product"
        )
    measures = measure_names(measures)  # before texts are encoded
    settings: dict[str, Any] = {
        "model": embedder.name,
        "weights": embedder.hash,
        "settings": embedder.settings_hash,
        "prompts": embedder.prompts,
        "max_length": embedder.max_length,
        "dtype": embedder.dtype,
    }
    options: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress}
    if embedder.context_size is not None:
        made = make_context(
            embedder, context, collection, seed=seed, other=other, batch_size=batch_size
        )
        settings |= {"context": context, "context_size": len(made), "seed": seed}
        settings |= {"context_length": embedder.context_length, "hash": made.hash}
        options["context"] = made
    documents = embedder.encode(collection.documents, "document", **options)
    queries = embedder.encode(collection.queries, "query", **options)
    result = Result(system or embedder.name, name, collection.query_ids, {}, settings)
    return _scored(
        result,
        collection,
        lambda k: search(queries, documents, k)[1],
        by_id=ignore_identical_ids,
        measures=measures,
    )


def evaluate_bm25(
    collection: Collection,
    *,
    system: str = "BM25",
    name: str = "collection",
    ignore_identical_ids: bool = False,
    measures: Sequence[str] = DEFAULT,
) -> Result:
    """Evaluates the BM25 baseline, scored per query by the same rules as embedders.

    Raises:
      ValueError: there is no such measure, or its cutoff exceeds the rankings' length.
    """
    measures = measure_names(measures)
    index = BM25(collection.documents)
    result = Result(system, name, collection.query_ids, {}, {"k1": 0.9, "b": 0.4})
    return _scored(
        result,
        collection,
        lambda k: index.search(collection.queries, k)[1],
        by_id=ignore_identical_ids,
        measures=measures,
    )


def evaluate_all(
    embedder: Embedder,
    collections: Mapping[str, Collection],
    config: EvaluationConfig,
    *,
    system: str | None = None,
    seed: int = 0,
    show_progress: bool = False,
) -> Iterator[Result]:
    """Evaluates BM25 (if configured) and an embedder on collections.

    A contextual model is evaluated in every configured context; if there are several,
    its results are named `SYSTEM (CONTEXT)`. The context `other-domain` is drawn from
    the next collection.

    Raises:
      ValueError: `other-domain` with a single collection.
    """
    system = system or embedder.name
    names = list(collections)
    contextual = embedder.context_size is not None
    kinds = config.contexts if contextual else config.contexts[:1]
    if contextual and "other-domain" in kinds and len(names) < 2:
        raise ValueError(
            "evaluation.contexts: `other-domain` takes its documents from another "
            "collection, but only one is evaluated; add one to evaluation.collections"
        )
    for index, name in enumerate(names):
        if config.bm25:
            yield evaluate_bm25(
                collections[name],
                name=name,
                ignore_identical_ids=config.ignore_identical_ids,
                measures=config.measures,
            )
        for kind in kinds:
            yield evaluate_embedder(
                embedder,
                collections[name],
                system=f"{system} ({kind})" if len(kinds) > 1 else system,
                name=name,
                context=kind,
                other=collections[names[(index + 1) % len(names)]],
                seed=seed,
                batch_size=config.batch_size,
                show_progress=show_progress,
                ignore_identical_ids=config.ignore_identical_ids,
                measures=config.measures,
            )


def measure_names(measures: Sequence[str]) -> list[str]:
    """The standard names of measures.

    Raises:
      ValueError: there is no such measure, or its cutoff exceeds the rankings' length.
    """
    found = [measure_of(name) for name in measures]
    for measure in found:
        if measure.cutoff is not None and measure.cutoff > DEPTH:
            raise ValueError(
                f"measure {measure.name!r}: rankings hold {DEPTH:,} documents; use a "
                f"cutoff of at most {DEPTH}"
            )
    return [measure.name for measure in found]


def _scored(
    result: Result,
    collection: Collection,
    search: Callable[[int], Int[np.ndarray, "queries found"]],
    *,
    by_id: bool,
    measures: Sequence[str],
) -> Result:
    """The result with the scores of the given rankings."""
    own = own_documents(collection, by_id=by_id)
    ids = ranked(search, DEPTH, own)
    scores = per_query(
        ids,
        collection.query_ids,
        collection.document_ids,
        collection.qrels,
        measures,
    )
    facts = {
        "depth": DEPTH,
        "documents": len(collection.documents),
        "own_documents": int((own >= 0).sum()),
        "ignore_identical_ids": by_id,
        "unknown_ids": collection.counts.get("unknown_ids", 0),
    }
    settings = result.settings | facts
    return dataclasses.replace(result, scores=scores, settings=settings)
