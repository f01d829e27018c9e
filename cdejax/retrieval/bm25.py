"""The BM25 baseline (bm25s, Lucene's variant)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from cdejax.data.given_texts import as_rows


class BM25:
    """BM25 over a corpus, with k1 0.9 and b 0.4 as in BEIR's baseline.

    Tokens are runs of two or more word characters (`\\b\\w\\w+\\b`), lower-cased;
    bm25s's English stop words are removed, without stemming. A document without tokens
    is never found; a query without known tokens finds nothing.
    """

    def __init__(self, documents: Sequence[str], k1: float = 0.9, b: float = 0.4):
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)
        if len(documents) == 0:
            raise ValueError("no documents to search in")
        self._count = len(documents)
        self._index = bm25s.BM25(k1=k1, b=b, method="lucene")
        tokens = _tokens(documents)
        self._known = {token for row in tokens for token in row}
        if self._known:
            self._index.index(tokens, show_progress=False)

    def search(
        self, queries: Sequence[str], k: int
    ) -> tuple[Float[np.ndarray, "queries k"], Int[np.ndarray, "queries k"]]:
        """The top k documents of every query, best first, ties to the lower index.

        Only documents that share a token with the query are returned: if there are
        fewer than k, the row is padded with id -1 and score 0.

        Raises:
          ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"k {k}: give 1 or more")
        k = min(k, self._count)
        scores = np.zeros((len(queries), k), np.float32)
        ids = np.full((len(queries), k), -1, np.int32)
        for row, tokens in enumerate(_tokens(queries)):
            found = [token for token in tokens if token in self._known]
            if found:
                best, where = _top(self._index.get_scores(found), k)
                scores[row, : len(best)], ids[row, : len(best)] = best, where
        return scores, ids


def _tokens(texts: Sequence[str]) -> list[list[str]]:
    import bm25s

    rows = bm25s.tokenize(list(as_rows(texts)), return_ids=False, show_progress=False)
    # bm25s represents a text without tokens by one empty token
    return [[str(token) for token in row if token] for row in rows]


def _top(
    scores: Float[np.ndarray, "documents"], k: int
) -> tuple[Float[np.ndarray, "found"], Int[np.ndarray, "found"]]:
    """The k highest positive scores; equal ones by index."""
    least = np.partition(scores, -k)[-k]
    candidates = np.flatnonzero((scores >= least) & (scores > 0))
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return scores[candidates[order]], candidates[order]
