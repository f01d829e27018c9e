"""The measures that there are, found by name."""

from __future__ import annotations

import re

from cdejax.config import EvaluationConfig
from cdejax.retrieval.measures.base import Measure
from cdejax.retrieval.measures.standard import (
    AVERAGE_PRECISION,
    NDCG,
    RECALL,
    RECIPROCAL_RANK,
)

MEASURES: dict[str, Measure] = {
    found.symbol: found for found in (NDCG, RECALL, RECIPROCAL_RANK, AVERAGE_PRECISION)
}
"""By symbol; each of them takes a cutoff."""
DEFAULT = EvaluationConfig().measures
"""What an evaluation computes unless told otherwise."""
_NAME = re.compile(r"([^@]+)(?:@([1-9][0-9]*))?")


def measure_of(name: str) -> Measure:
    """The measure called SYMBOL or SYMBOL@CUTOFF.

    Raises:
      ValueError: there is no such measure, or the cutoff is no positive integer.
    """
    parts = _NAME.fullmatch(name)
    if parts is not None and parts[1] in MEASURES:
        return MEASURES[parts[1]].at(int(parts[2]) if parts[2] else None)
    raise ValueError(
        f"measure {name!r}: no such measure. There are {', '.join(MEASURES)}, each "
        "alone or with a cutoff of 1 or more, as in `nDCG@10`."
    )
