"""Definition of a retrieval measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Int

Ranked = Int[np.ndarray, "ranked"]
"""Grades of the ranked documents, best first; 0 for documents that are not relevant."""
Relevant = Int[np.ndarray, "relevant"]
"""Grades of all documents relevant to the query, highest first."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of one ranked list; reported scores are its means over queries."""

    symbol: str
    """Name without a cutoff, as in ir-measures: `nDCG`."""
    function: Callable[[Ranked, Relevant, int | None], float] | None = None
    """Computes the value for one query from the grades and the cutoff.

    None: ir-measures computes it. The function gets the whole list and applies the
    cutoff, if any, itself.
    """
    cutoff: int | None = None
    """Number of top-ranked documents that count; None for all."""
    title: str = ""
    """Name in tables and charts, instead of the symbol."""
    higher_is_better: bool = True

    @property
    def name(self) -> str:
        """Name in recipes, files and code: `nDCG@10`."""
        return self._with_cutoff(self.symbol)

    @property
    def label(self) -> str:
        """Name in tables and charts."""
        return self._with_cutoff(self.title or self.symbol)

    def at(self, cutoff: int | None) -> Measure:
        """The same measure with another cutoff."""
        return dataclasses.replace(self, cutoff=cutoff)

    def as_gain(self, value: float) -> float:
        """The value, negated if lower is better, so that the highest is the best."""
        return value if self.higher_is_better else -value

    def _with_cutoff(self, text: str) -> str:
        return text if self.cutoff is None else f"{text}@{self.cutoff}"
