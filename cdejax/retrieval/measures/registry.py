"""Measures by name: those of ir-measures and those added here."""

from __future__ import annotations

import re

from cdejax.config import EvaluationConfig
from cdejax.retrieval.measures.base import Measure

MEASURES: dict[str, Measure] = {}
"""Measures that ir-measures lacks, by symbol; each takes a cutoff."""
DEFAULT = EvaluationConfig().measures
"""Measures that an evaluation computes by default."""
_NAME = re.compile(r"([^@]+)(?:@([1-9][0-9]*))?")


def measure_of(name: str) -> Measure:
    """The measure called SYMBOL or SYMBOL@CUTOFF, as in `nDCG@10`, `R@100` or `AP`.

    Raises:
      ValueError: there is no such measure, or the cutoff is not a positive integer.
    """
    parts = _NAME.fullmatch(name)
    if parts is not None and parts[1] in MEASURES:
        return MEASURES[parts[1]].at(int(parts[2]) if parts[2] else None)
    if parts is not None and (found := _library_name(name)) is not None:
        symbol, _, cutoff = found.partition("@")
        return Measure(symbol, cutoff=int(cutoff) if cutoff else None)
    added = "".join(f", {symbol}" for symbol in MEASURES)
    raise ValueError(
        f"measure {name!r}: no such measure. Take one of ir-measures (nDCG, R, RR, AP, "
        f"P, Success, …{added}), alone or with a cutoff of 1 or more, as in `nDCG@10`."
    )


def _library_name(name: str) -> str | None:
    """The standard name of a measure that ir-measures can compute here."""
    import ir_measures

    try:
        measure = ir_measures.parse_measure(name)
        measure.validate_params()
    except (ValueError, NameError, AssertionError):
        return None
    return str(measure) if ir_measures.DefaultPipeline.supports(measure) else None
