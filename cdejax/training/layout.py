"""The layout of a step's texts: rows and chunks of few static shapes.

All lengths are known in advance and the order within a step is free, so a batch reaches
the device in static shapes with little padding. There are two kinds of layout.
*Packed*: several texts share a row, separated by segment ids; all rows have one width.
*Padded*: one text per row, with rows of few widths; for the second stage of a
contextual encoder, where every text is encoded with a context. In both, a group of rows
has a fixed shape, and only the number of chunks in use varies from step to step: one
compilation serves all steps.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from cdejax.training.rows import RowsType


class Shape(NamedTuple):
    """A group of rows of equal width on one device."""

    width: int
    rows: int
    """Number of rows per chunk."""
    slots: int
    """Maximum number of texts per row."""
    chunks: int
    """Maximum number of chunks."""
    least: int
    """Number of chunks that every step uses."""

    @property
    def vectors(self) -> int:
        """Number of vectors of all chunks."""
        return self.chunks * self.rows * self.slots


class Places(NamedTuple):
    """Positions of the texts of one device."""

    group: Int[np.ndarray, "texts"]
    row: Int[np.ndarray, "texts"]
    """Row in the group, counted over all chunks."""
    start: Int[np.ndarray, "texts"]
    """First position in the row."""
    slot: Int[np.ndarray, "texts"]
    """Index of the text in its row."""
    counts: tuple[int, ...]
    """Number of chunks in use, by group."""


@dataclass(frozen=True)
class Layout(abc.ABC):
    """The shapes of some sides of a step, and how texts are arranged in them."""

    kind: ClassVar[str]
    rows: ClassVar[RowsType]
    """Type of the rows that hold the texts."""
    shapes: tuple[Shape, ...]

    def arrange(self, lengths: Int[np.ndarray, "texts"]) -> Places:
        """Arranges the texts of one device.

        Args:
          lengths: lengths of the texts, longest first.

        Raises:
          ValueError: a text is longer than the widest row, or the texts need more
            chunks than planned.
        """
        if len(lengths) and lengths[0] > (widest := max(s.width for s in self.shapes)):
            raise ValueError(
                f"a text of {lengths[0]} tokens where rows have {widest}; the layout "
                "was planned for another batch plan"
            )
        places = self._place(np.asarray(lengths))
        most = tuple(shape.chunks for shape in self.shapes)
        if any(n > m for n, m in zip(places.counts, most, strict=True)):
            raise ValueError(
                f"texts for {places.counts} chunks where there are {most}; the layout "
                "was planned for another batch plan"
            )
        return places

    @abc.abstractmethod
    def _place(self, lengths: Int[np.ndarray, "texts"]) -> Places:
        """Places of texts, longest first, none of which is too long."""

    def vector_indices(self, places: Places) -> Int[np.ndarray, "texts"]:
        """Index of each text's vector among the vectors of all groups."""
        sizes = [shape.vectors for shape in self.shapes]
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        slots = np.array([shape.slots for shape in self.shapes])
        group = places.group
        return first[group] + places.row * slots[group] + places.slot

    def positions(self, places: Places) -> int:
        """Number of computed token positions, not counting those before texts."""
        pairs = zip(self.shapes, places.counts, strict=True)
        return sum(count * shape.rows * shape.width for shape, count in pairs)

    def chunk_positions(self, shape: Shape) -> int:
        """Number of computed positions of a chunk, including those before texts."""
        return shape.rows * shape.width

    @abc.abstractmethod
    def best_positions(self, lengths: Int[np.ndarray, "texts"]) -> int:
        """As `positions`, without empty rows and with every text in its best width."""


def sample_steps(
    steps: Sequence[Int[np.ndarray, "devices texts"]],
) -> list[Int[np.ndarray, "devices texts"]]:
    """About eight steps, evenly spaced."""
    return [steps[i] for i in range(0, len(steps), len(steps) // 8 or 1)]
