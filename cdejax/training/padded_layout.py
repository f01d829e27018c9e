"""Padded rows: one text per row, in few widths that pad the least."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from cdejax.training.layout import Layout, Places, Shape, sample_steps
from cdejax.training.row_widths import best_widths
from cdejax.training.rows import PaddedRows

_COPY = 0.02
"""Share of the computed positions that another width must save: each adds a copy of the
encoder to the compiled step, which costs many seconds of compilation on a GPU."""


@dataclass(frozen=True)
class PaddedLayout(Layout):
    """Rows of few widths, in ascending order, for one text each."""

    kind = "padded"
    rows = PaddedRows
    front: int = 0
    """Number of positions before the text in every row: context and soft tokens."""

    @classmethod
    def of_widths(
        cls, widths: Sequence[int], chunk_tokens: int, front: int, texts: int
    ) -> PaddedLayout:
        """A layout whose chunks are not counted yet.

        Args:
          widths: of the rows.
          chunk_tokens: maximum number of token positions per chunk, `front` included
            (but at least one row).
          front: number of positions before the text in every row.
          texts: maximum number of rows per chunk.
        """
        rows = [min(max(chunk_tokens // (front + w), 1), texts) for w in widths]
        pairs = zip(widths, rows, strict=True)
        return cls(tuple(Shape(width, n, 1, 0, 0) for width, n in pairs), front)

    def _place(self, lengths: Int[np.ndarray, "texts"]) -> Places:
        counts = self.texts_by_width(lengths[None])[0]
        group = np.repeat(np.arange(len(counts))[::-1], counts[::-1])  # longest first
        first = np.concatenate([[0], np.cumsum(counts[::-1])[:-1]])
        row = np.arange(len(lengths)) - np.repeat(first, counts[::-1])
        used = self.chunks_in_use(lengths[None])[0]
        zeros = np.zeros_like(row)
        return Places(group, row, zeros, zeros, tuple(int(n) for n in used))

    def best_positions(self, lengths: Int[np.ndarray, "texts"]) -> int:
        """As `positions`, without empty rows and with every text in its best width."""
        widths = np.array([shape.width for shape in self.shapes])
        return int(widths[np.searchsorted(widths, lengths)].sum())

    def chunk_positions(self, shape: Shape) -> int:
        """Number of computed positions of a chunk, including those before texts."""
        return shape.rows * (self.front + shape.width)

    def texts_by_width(
        self, lengths: Int[np.ndarray, "devices texts"]
    ) -> Int[np.ndarray, "devices widths"]:
        """Number of texts in rows of each width.

        The texts of a chunk that would be mostly empty go to the next width, if their
        wider rows cost less than the empty rows.
        """
        shapes, front = self.shapes, self.front
        limits = np.array([0, *(shape.width for shape in shapes)])
        below = np.stack([(lengths <= limit).sum(1) for limit in limits], axis=1)
        below[:, 0] = 0  # empty texts count for the narrowest width
        counts = np.diff(below, axis=1)
        # From narrow to wide: texts that moved up may move on with the rest there.
        for i, (shape, wider) in enumerate(itertools.pairwise(shapes)):
            rest = counts[:, i] % shape.rows
            empty = (shape.rows - rest) * (front + shape.width)
            moved = np.where(rest * (wider.width - shape.width) < empty, rest, 0)
            counts[:, i] -= moved
            counts[:, i + 1] += moved
        return counts

    def chunks_in_use(
        self, lengths: Int[np.ndarray, "devices texts"]
    ) -> Int[np.ndarray, "devices widths"]:
        """Number of chunks of each width that hold texts."""
        rows = np.array([shape.rows for shape in self.shapes])
        return -(-self.texts_by_width(lengths) // rows)

    def computed(self, lengths: Int[np.ndarray, "devices texts"]) -> int:
        """Number of positions computed on all devices, including those before texts."""
        each = np.array([self.chunk_positions(shape) for shape in self.shapes])
        return int((self.chunks_in_use(lengths) @ each).sum())


def plan_padded(
    steps: Sequence[Int[np.ndarray, "devices texts"]],
    chunk_tokens: int,
    *,
    front: int = 0,
    max_widths: int = 8,
) -> PaddedLayout:
    """Plans a padded layout: rows of few widths for one text each.

    Args:
      steps: lengths of the texts on each device in each step, longest first.
      chunk_tokens: maximum number of token positions per chunk, `front` included (but
        at least one row).
      front: number of positions before the text in every row.
      max_widths: maximum number of widths; fewer if another would save little (see
        `_COPY`).
    """
    histogram = np.zeros(1, np.int64)
    for lengths in steps:
        counts = np.bincount(lengths.ravel())
        histogram = np.pad(histogram, (0, max(len(counts) - len(histogram), 0)))
        histogram[: len(counts)] += counts
    # Candidates are judged on a sample of steps. Somewhat smaller chunks than asked for
    # are tried, too: they may divide the texts of a step with fewer empty rows.
    sample = np.concatenate(sample_steps(steps))
    layouts = [
        PaddedLayout.of_widths(
            best_widths(histogram, most), tokens, front, sample.shape[1]
        )
        for most in range(1, min(max_widths, len(histogram) // 8 + 1) + 1)
        for tokens in np.linspace(
            chunk_tokens, 0.7 * chunk_tokens, 7, dtype=int
        ).tolist()
    ]
    layout = min(
        layouts,
        key=lambda layout: layout.computed(sample) * (1 + _COPY * len(layout.shapes)),
    )
    # Numbers of chunks come from all steps: `chunks` is the size of the arrays, which
    # no step may exceed; `least` says how many chunks hold texts in every step.
    used = np.concatenate([layout.chunks_in_use(lengths) for lengths in steps])
    most, least = used.max(0).tolist(), used.min(0).tolist()
    shapes = tuple(
        shape._replace(chunks=max(high, 1), least=low)
        for shape, high, low in zip(layout.shapes, most, least, strict=True)
    )
    return dataclasses.replace(layout, shapes=shapes)
