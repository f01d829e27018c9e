"""Documents known to be relevant to a query, beyond those evident from a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

_QUERY = 32
"""Bits below a query's id in a key: content ids are non-negative and below 2^31."""


@dataclass(frozen=True)
class KnownPositives:
    """Pairs of a query text and a document text known to be relevant to it.

    Both are given by content ids of one numbering: equal texts have equal ids.
    """

    keys: Int64[np.ndarray, "known"]
    """`query id << 32 | document id`, ascending and unique, of queries with several
    documents; for the others, a row's own positive is the only one."""

    @classmethod
    def of(
        cls, query: Int[np.ndarray, "pairs"], document: Int[np.ndarray, "pairs"]
    ) -> KnownPositives:
        """Collects pairs given by content ids, in any order and with repeats."""
        keys = np.unique(_keys(query, document))
        _, owner, counts = np.unique(
            keys >> _QUERY, return_inverse=True, return_counts=True
        )
        return cls(keys[counts[owner] > 1])

    def has_several(
        self, query: Int[np.ndarray, "queries"]
    ) -> Bool[np.ndarray, "queries"]:
        """Mask of the queries (content ids) known to have several documents."""
        return np.isin(query, self.keys >> _QUERY)

    def beyond_batch(
        self,
        query: Int[np.ndarray, "batch"],
        positive: Int[np.ndarray, "batch"],
        negative: Int[np.ndarray, "negatives"],
    ) -> Int32[np.ndarray, "batch known"]:
        """Known positives of each row that the batch alone does not reveal.

        Two kinds need no list: documents with the text of the row's own positive, and
        the positives of rows with the same query. A document is left out only if that
        holds for all of its occurrences in the batch.

        Args:
          query: content ids of the batch's queries.
          positive: content ids of their positives.
          negative: content ids of the batch's hard negatives.

        Returns:
          Content ids, padded with -1 to the longest row.
        """
        row, document = self._documents(query)
        shown = _count(_keys(query, positive), _keys(query[row], document))
        places = _count(np.concatenate([positive, negative]), document)
        keep = (shown < places) & (document != positive[row])
        row, document = row[keep], document[keep]
        place = np.arange(len(row)) - np.searchsorted(row, row)
        out = np.full((len(query), place.max(initial=-1) + 1), -1, np.int32)
        out[row, place] = document
        return out

    def _documents(
        self, query: Int[np.ndarray, "batch"]
    ) -> tuple[Int[np.ndarray, "found"], Int[np.ndarray, "found"]]:
        """All known documents of each row, as (rows, ascending, and documents)."""
        low = np.searchsorted(self.keys, _keys(query, np.zeros_like(query)))
        high = np.searchsorted(self.keys, _keys(query + 1, np.zeros_like(query)))
        counts = high - low
        row = np.repeat(np.arange(len(query)), counts)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = self.keys[np.repeat(low, counts) + offset]
        return row, keys & ((1 << _QUERY) - 1)


def _keys(
    query: Int[np.ndarray, "pairs"], document: Int[np.ndarray, "pairs"]
) -> Int64[np.ndarray, "pairs"]:
    return np.asarray(query, np.int64) << _QUERY | np.asarray(document, np.int64)


def _count(
    values: Int[np.ndarray, "values"], wanted: Int[np.ndarray, "wanted"]
) -> Int[np.ndarray, "wanted"]:
    """Number of occurrences of each wanted number among the values."""
    values = np.sort(values)
    ends = (np.searchsorted(values, wanted, side) for side in ("right", "left"))
    return np.subtract(*ends)
