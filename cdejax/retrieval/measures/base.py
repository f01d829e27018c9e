"""What a retrieval measure is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Int

Ranked = Int[np.ndarray, "ranked"]
"""Grades of a list's documents, best first; 0 for those that are not relevant."""
Relevant = Int[np.ndarray, "relevant"]
"""Grades of all documents that are relevant to the query, highest first."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of one ranked list; figures are its means over queries."""

    symbol: str
    """Its name without a cutoff, as in ir-measures: `nDCG`."""
    function: Callable[[Ranked, Relevant, int | None], float] | None = None
    """From the grades and the cutoff to the value for one query; None: ir-measures'.

    It is given the whole list, and applies the cutoff itself where there is one.
    """
    cutoff: int | None = None
    """How many documents of a list count; None for all of them."""
    title: str = ""
    """What tables and charts call it, in place of the symbol."""
    higher_is_better: bool = True

    @property
    def name(self) -> str:
        """What recipes, files and code call it: `nDCG@10`."""
        return self._with_cutoff(self.symbol)

    @property
    def label(self) -> str:
        """What tables and charts call it."""
        return self._with_cutoff(self.title or self.symbol)

    def at(self, cutoff: int | None) -> Measure:
        """The same measure with another cutoff."""
        return dataclasses.replace(self, cutoff=cutoff)

    def as_gain(self, value: float) -> float:
        """The value, negated if lower is better: the best one is the highest."""
        return value if self.higher_is_better else -value

    def _with_cutoff(self, text: str) -> str:
        return text if self.cutoff is None else f"{text}@{self.cutoff}"
