"""Documents identical to the query, as in corpora of duplicate questions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from cdejax.data.beir import Collection


def own_documents(
    collection: Collection, *, by_id: bool = False
) -> Int[np.ndarray, "queries"]:
    """Position of the document that is left out of each query's ranking, or -1.

    By default, it is the document with the query's id and text (with or without the
    title), unless it is judged relevant. By BEIR's rule (`ignore_identical_ids` in
    Thakur et al. 2021, arXiv 2104.08663) it is the document with the query's id.

    Args:
      collection: documents, queries and judgments.
      by_id: use BEIR's rule, for collections whose queries and documents share one id
        space.
    """
    places = {id: place for place, id in enumerate(collection.document_ids)}
    own = np.full(len(collection.query_ids), -1)
    for row, id in enumerate(collection.query_ids):
        place = places.get(id, -1)
        if place >= 0 and (by_id or _is_query(collection, row, place)):
            own[row] = place
    return own


def ranked(
    search: Callable[[int], Int[np.ndarray, "queries found"]],
    depth: int,
    own: Int[np.ndarray, "queries"],
) -> Int[np.ndarray, "queries k"]:
    """Rankings of at most `depth` documents, without each query's own document.

    Args:
      search: returns rankings of a given length, best first; -1 ends one early.
      depth: number of documents kept per ranking.
      own: the result of `own_documents`.
    """
    if not (own >= 0).any():
        return search(depth)
    ids = search(depth + 1)
    found = (ids == own[:, None]) & (own >= 0)[:, None]
    last = np.argsort(found, axis=1, kind="stable")  # all others keep their order
    kept = np.take_along_axis(np.where(found, -1, ids), last, axis=1)
    return kept[:, :depth]


def _is_query(collection: Collection, row: int, place: int) -> bool:
    """Whether a document has the query's text and is not judged relevant to it."""
    id, query = collection.query_ids[row], collection.queries[row].strip()
    document = collection.documents[place].strip()
    bare = document.removeprefix(collection.titles.get(id, "")).strip()
    return query in (document, bare) and collection.qrels[id].get(id, 0) <= 0
