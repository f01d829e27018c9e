"""Documents known to answer a query, beyond those that a batch shows by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

if TYPE_CHECKING:
    from cdejax.data.pairs import Pairs


@dataclass(frozen=True)
class KnownPositives:
    """Sorted keys `query content * stride + document content` of all pairs.

    Only queries with several documents are kept: for the others a pair says it all.
    """

    keys: Int[np.ndarray, "pairs"]
    stride: int

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> KnownPositives:
        """Collects the positives of the training pairs, and of the held-out ones."""
        parts = (pairs.train, pairs.heldout)
        query = np.concatenate([pairs.query_content[part.query] for part in parts])
        document = np.concatenate(
            [pairs.document_content[part.document] for part in parts]
        )
        stride = int(pairs.document_content.max(initial=0)) + 1
        keys = np.unique(query.astype(np.int64) * stride + document)
        owners, counts = np.unique(keys // stride, return_counts=True)
        several = np.isin(keys // stride, owners[counts > 1])
        return cls(keys[several], stride)

    def beyond_batch(
        self,
        query: Int[np.ndarray, "batch"],
        positive: Int[np.ndarray, "batch"],
        negative: Int[np.ndarray, "negatives"],
    ) -> Int[np.ndarray, "batch known"]:
        """Known positives of each row that stand in the batch under another query.

        Args:
          query: content ids of the batch's queries.
          positive: content ids of their positives.
          negative: content ids of the batch's hard negatives.

        Returns:
          Content ids, filled up with -1 to the longest row; positives of rows with the
          same query are left out, since equal query ids show them.
        """
        present = np.unique(np.concatenate([positive, negative]))
        low = np.searchsorted(self.keys, query * self.stride)
        high = np.searchsorted(self.keys, (query + 1) * self.stride)
        counts = high - low
        row = np.repeat(np.arange(len(query)), counts)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = self.keys[np.repeat(low, counts) + offset]
        document = keys % self.stride
        shown = np.isin(keys, query.astype(np.int64) * self.stride + positive)
        keep = np.isin(document, present) & (~shown | np.isin(document, negative))
        row, document = row[keep], document[keep]
        place = np.arange(len(row)) - np.searchsorted(row, row)
        out = np.full((len(query), place.max(initial=-1) + 1), -1, np.int32)
        out[row, place] = document
        return out
