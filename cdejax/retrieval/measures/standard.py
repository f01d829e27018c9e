"""The usual measures of ranked retrieval, equal to trec_eval's to the last bit."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int

from cdejax.retrieval.measures.base import Measure, Ranked, Relevant


def ndcg(ranked: Ranked, relevant: Relevant, cutoff: int | None) -> float:
    """Normalised discounted cumulative gain (Järvelin and Kekäläinen 2002).

    The gain of a document is its grade, the discount at rank r is log2(r + 1).
    """
    return _dcg(ranked[:cutoff]) / _dcg(relevant[:cutoff])


def recall(ranked: Ranked, relevant: Relevant, cutoff: int | None) -> float:
    """Share of the relevant documents that are found."""
    return np.count_nonzero(ranked[:cutoff]) / len(relevant)


def reciprocal_rank(ranked: Ranked, relevant: Relevant, cutoff: int | None) -> float:
    """1 / rank of the first relevant document, 0 if none is found (Voorhees 1999)."""
    hits = np.flatnonzero(ranked[:cutoff])
    return 1 / (int(hits[0]) + 1) if len(hits) else 0.0


def average_precision(ranked: Ranked, relevant: Relevant, cutoff: int | None) -> float:
    """Precision at the rank of each relevant document found, averaged over all of them.

    A relevant document that is not found counts as precision 0.
    """
    ranks = np.flatnonzero(ranked[:cutoff]) + 1
    return _sum(np.arange(1, len(ranks) + 1) / ranks) / len(relevant)


def _dcg(grades: Int[np.ndarray, "documents"]) -> float:
    # libm's log2, as in trec_eval: NumPy's may differ in the last bit
    return _sum(grades / np.array([math.log2(r + 2) for r in range(len(grades))]))


def _sum(values: np.ndarray) -> float:
    """Sum from the first to the last, as in trec_eval; `np.sum` adds in pairs."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


NDCG = Measure("nDCG", ndcg)
RECALL = Measure("R", recall)
RECIPROCAL_RANK = Measure("RR", reciprocal_rank)
AVERAGE_PRECISION = Measure("AP", average_precision)
