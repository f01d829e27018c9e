"""The held-out part of the pairs as an evaluation collection."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from cdejax.data.beir import Collection

if TYPE_CHECKING:
    from cdejax.data.pairs import Pairs


def heldout_collection(pairs: Pairs, domain: str | None = None) -> Collection:
    """The held-out pairs as a collection, of all domains or of one.

    Documents are the held-out pairs' documents and their negatives, each text once;
    queries likewise. Relevant to a query is every one of these documents that a
    held-out pair joins to an equal query text.

    Raises:
      ValueError: an unknown domain, or no held-out pairs in it.
    """
    table = pairs.heldout
    rows = np.arange(len(table))
    if domain is not None:
        rows = np.flatnonzero(table.domain == _domain(pairs, domain))
    if not len(rows):
        where = f" in domain {domain!r}" if domain else ""
        raise ValueError(
            f"no held-out pairs{where}; set data.heldout_fraction when building them"
        )
    negatives = [table.negatives[row] for row in rows.tolist()]
    candidates = np.concatenate([table.document[rows], *negatives]).astype(np.int64)
    documents = _unique(pairs.document_content, candidates)
    queries = _unique(pairs.query_content, table.query[rows])
    qrels = _qrels(pairs, queries, documents)
    texts = [pairs.documents[row] for row in documents.values()]
    return Collection(
        document_ids=[str(content) for content in documents],
        documents=texts,
        query_ids=[str(content) for content in queries],
        queries=[pairs.queries[row] for row in queries.values()],
        qrels=qrels,
        counts={
            "documents": len(texts),
            "empty_documents": sum(not text for text in texts),
            "queries": len(queries),
            "unjudged_queries": 0,
            "judgments": sum(map(len, qrels.values())),
        },
    )


def _domain(pairs: Pairs, name: str) -> int:
    if name not in pairs.domains:
        near = difflib.get_close_matches(name, pairs.domains, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"domain {name!r}: the pairs have no such domain{hint}")
    return pairs.domains.index(name)


def _unique(
    content: Int[np.ndarray, "rows"], rows: Int[np.ndarray, "chosen"]
) -> dict[int, int]:
    """The first row of every content id among the rows, in order of appearance."""
    found: dict[int, int] = {}
    for row in rows.tolist():
        found.setdefault(int(content[row]), row)
    return found


def _qrels(
    pairs: Pairs, queries: dict[int, int], documents: dict[int, int]
) -> dict[str, dict[str, int]]:
    """Every held-out pair whose texts are both there, whatever its domain."""
    qrels: dict[str, dict[str, int]] = {str(content): {} for content in queries}
    asked = pairs.query_content[pairs.heldout.query].tolist()
    answer = pairs.document_content[pairs.heldout.document].tolist()
    for query, document in zip(asked, answer, strict=True):
        if query in queries and document in documents:
            qrels[str(query)][str(document)] = 1
    return qrels
