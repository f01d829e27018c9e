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

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

_GOOD = 0.97
"""Padding efficiency beyond which wider rows are not worth their attention cost."""
_NARROWEST = 128
_COPY = 0.02
"""Share of the computed positions that another width must save: each adds a copy of the
encoder to the compiled step, which costs many seconds of compilation on a GPU."""


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
class Layout:
    """The shapes of some sides of a step, and how texts are arranged in them."""

    shapes: tuple[Shape, ...]
    packed: bool
    front: int = 0
    """Number of positions before the text in every row: context and soft tokens."""

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` makes an equal layout from."""
        shapes = [shape._asdict() for shape in self.shapes]
        return {"packed": self.packed, "front": self.front, "shapes": shapes}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Layout:
        """The layout that `to_json` describes."""
        shapes = tuple(Shape(**shape) for shape in value["shapes"])
        return Layout(shapes, value["packed"], value["front"])

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
        place = _place_packed if self.packed else _place_padded
        places = place(np.asarray(lengths), self)
        most = tuple(shape.chunks for shape in self.shapes)
        if any(n > m for n, m in zip(places.counts, most, strict=True)):
            raise ValueError(
                f"texts for {places.counts} chunks where there are {most}; the layout "
                "was planned for another batch plan"
            )
        return places

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

    def best_positions(self, lengths: Int[np.ndarray, "texts"]) -> int:
        """As `positions`, without empty rows and with every text in its best width."""
        widths = np.array([shape.width for shape in self.shapes])
        if self.packed:
            return int(-(-lengths.sum() // widths[0]) * widths[0])
        return int(widths[np.searchsorted(widths, lengths)].sum())


def _sample_steps(
    steps: Sequence[Int[np.ndarray, "devices texts"]],
) -> list[Int[np.ndarray, "devices texts"]]:
    """About eight steps, evenly spaced."""
    return [steps[i] for i in range(0, len(steps), len(steps) // 8 or 1)]


def plan_packed(
    steps: Sequence[Int[np.ndarray, "devices texts"]], chunk_tokens: int
) -> Layout:
    """Plans a packed layout: rows of one width for several texts each.

    The width is the smallest power of two that holds the longest text and is filled
    well. A chunk has as many rows as `chunk_tokens` allows, or slightly fewer if that
    leaves fewer empty rows in the last chunk.

    Args:
      steps: lengths of the texts on each device in each step, longest first.
      chunk_tokens: maximum number of token positions per chunk (but at least one row).
    """
    sample = [lengths[0].tolist() for lengths in _sample_steps(steps)]
    longest, totals = 1, []
    for lengths in steps:
        longest = max(longest, int(lengths.max(initial=1)))
        totals += lengths.sum(1).tolist()
    width, texts = _row_width(sample, longest), len(sample[0])
    slots = max(_slots(lengths, width) for lengths in sample)
    rows = _rows_of_chunk(
        [_rows_needed(lengths, width, slots) for lengths in sample],
        max(chunk_tokens // width, 1),
    )
    high, low = (-(-n // width) for n in (max(totals), max(min(totals), 1)))
    # The bound of `_best_fit`, so always enough.
    most = min(2 * high + -(-texts // slots) + 1, texts)
    shape = Shape(width, rows, slots, -(-most // rows), -(-low // rows))
    return Layout((shape,), packed=True)


def _row_width(sample: list[list[int]], longest: int) -> int:
    """The smallest power of two that is filled well, or else the best of four."""
    width = max(_NARROWEST, 1 << (longest - 1).bit_length())
    real = sum(map(sum, sample))
    best, found = 0.0, width
    for candidate in (width, 2 * width, 4 * width, 8 * width):
        rows = sum(
            _rows_needed(lengths, candidate, _slots(lengths, candidate))
            for lengths in sample
        )
        filled = real / (rows * candidate)
        if filled > best + 0.01:
            best, found = filled, candidate
        if best >= _GOOD:
            break
    return found


def _slots(lengths: list[int], width: int) -> int:
    """Slots per row: slightly more than four times the mean texts of full rows.

    Rows of only short texts could use many more, but every slot of every row costs the
    memory of a vector.
    """
    full_rows = max(sum(lengths) // width, 1)
    return 4 * -(-len(lengths) // full_rows) + 2


def _rows_needed(lengths: list[int], width: int, slots: int) -> int:
    return int(_best_fit(lengths, width, slots)[0].max(initial=0)) + 1


def _rows_of_chunk(needed: list[int], most: int) -> int:
    """Rows per chunk, from 3/4 of `most` to `most`, that leave the fewest empty."""
    most = min(most, max(needed))
    candidates = range(most, max(most * 3 // 4, 1) - 1, -1)
    return min(candidates, key=lambda rows: sum(-(-n // rows) * rows for n in needed))


def _place_packed(lengths: Int[np.ndarray, "texts"], layout: Layout) -> Places:
    shape = layout.shapes[0]
    row, start, slot = _best_fit(lengths.tolist(), shape.width, shape.slots)
    counts = (int(row.max(initial=0)) // shape.rows + 1,)
    return Places(np.zeros_like(row), row, start, slot, counts)


def _best_fit(lengths: list[int], width: int, slots: int) -> Int[np.ndarray, "3 texts"]:
    """Row, start and slot of each text by best-fit decreasing bin packing.

    Given longest first, each text goes to the fullest row with room. At most one row
    with a free slot is at most half full, so there are at most
    2 tokens / width + texts / slots + 1 rows.
    """
    rows_with: list[list[int]] = [[] for _ in range(width + 1)]
    spaces = 0  # bit n is set where a row has room for n tokens
    used: list[int] = []
    places = np.empty((3, len(lengths)), np.int64)
    for index, length in enumerate(lengths):
        if fitting := spaces >> length:
            space = length + (fitting & -fitting).bit_length() - 1
            row = rows_with[space].pop()
            if not rows_with[space]:
                spaces ^= 1 << space
        else:
            space, row = width, len(used)
            used.append(0)
        places[:, index] = row, width - space, used[row]
        used[row] += 1
        left = space - length
        if left and used[row] < slots:
            rows_with[left].append(row)
            spaces |= 1 << left
    return places


def plan_padded(
    steps: Sequence[Int[np.ndarray, "devices texts"]],
    chunk_tokens: int,
    *,
    front: int = 0,
    max_widths: int = 8,
) -> Layout:
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
    sample = np.concatenate(_sample_steps(steps))
    layouts = [
        _without_counts(best_widths(histogram, most), tokens, front, sample.shape[1])
        for most in range(1, min(max_widths, len(histogram) // 8 + 1) + 1)
        for tokens in np.linspace(
            chunk_tokens, 0.7 * chunk_tokens, 7, dtype=int
        ).tolist()
    ]
    layout = min(
        layouts,
        key=lambda layout: (
            _computed_positions(sample, layout) * (1 + _COPY * len(layout.shapes))
        ),
    )
    used = np.concatenate(
        [_chunks_in_use(_by_width(lengths, layout), layout) for lengths in steps]
    )
    most, least = used.max(0).tolist(), used.min(0).tolist()
    shapes = tuple(
        shape._replace(chunks=max(high, 1), least=low)
        for shape, high, low in zip(layout.shapes, most, least, strict=True)
    )
    return dataclasses.replace(layout, shapes=shapes)


def _without_counts(
    widths: tuple[int, ...], chunk_tokens: int, front: int, texts: int
) -> Layout:
    """A padded layout with the given widths, whose chunks are not counted yet."""
    rows = [min(max(chunk_tokens // (front + w), 1), texts) for w in widths]
    pairs = zip(widths, rows, strict=True)
    shapes = tuple(Shape(width, n, 1, 0, 0) for width, n in pairs)
    return Layout(shapes, packed=False, front=front)


def _computed_positions(
    sample: Int[np.ndarray, "devices texts"], layout: Layout
) -> int:
    """Number of positions computed for some steps, including those before texts."""
    each = [shape.rows * (layout.front + shape.width) for shape in layout.shapes]
    return int(
        (_chunks_in_use(_by_width(sample, layout), layout) @ np.array(each)).sum()
    )


def best_widths(histogram: Int[np.ndarray, "longest"], most: int) -> tuple[int, ...]:
    """The widths, multiples of 8 in ascending order, with the least padding.

    Found exactly, by dynamic programming.

    Args:
      histogram: number of texts of each length.
      most: maximum number of widths.
    """
    steps = -(-(len(histogram) - 1) // 8) or 1
    padded = np.zeros(steps * 8 + 1, np.int64)
    padded[: len(histogram)] = histogram
    counts = padded[1:].reshape(steps, 8).sum(1)
    counts[0] += padded[0]
    ends = np.concatenate([[0], np.cumsum(counts)])
    width = 8 * np.arange(steps + 1)
    # cost[i, j]: texts of more than 8 i and at most 8 j tokens, in rows of 8 j
    cost = np.where(
        np.arange(steps + 1)[:, None] < np.arange(steps + 1),
        (ends[None, :] - ends[:, None]) * width[None, :],
        np.iinfo(np.int64).max // 4,
    )
    best, cuts = cost[0], []
    for _ in range(1, min(most, steps)):
        total = best[:, None] + cost
        total[0] = cost[0]
        cuts.append(total.argmin(0))
        best = total.min(0)
    found, end = [], steps
    for cut in reversed([np.zeros(steps + 1, int), *cuts]):
        found.append(8 * end)
        end = int(cut[end])
        if end == 0:
            break
    return tuple(sorted(set(found)))


def _by_width(
    lengths: Int[np.ndarray, "devices texts"], layout: Layout
) -> Int[np.ndarray, "devices widths"]:
    """Number of texts in rows of each width.

    The texts of a chunk that would be mostly empty go to the next width, if their wider
    rows cost less than the empty rows.
    """
    shapes, front = layout.shapes, layout.front
    limits = np.array([0, *(shape.width for shape in shapes)])
    below = np.stack([(lengths <= limit).sum(1) for limit in limits], axis=1)
    below[:, 0] = 0  # empty texts count for the narrowest width
    counts = np.diff(below, axis=1)
    for i, (shape, wider) in enumerate(itertools.pairwise(shapes)):
        rest = counts[:, i] % shape.rows
        empty = (shape.rows - rest) * (front + shape.width)
        moved = np.where(rest * (wider.width - shape.width) < empty, rest, 0)
        counts[:, i] -= moved
        counts[:, i + 1] += moved
    return counts


def _chunks_in_use(
    counts: Int[np.ndarray, "devices widths"], layout: Layout
) -> Int[np.ndarray, "devices widths"]:
    """Number of chunks in use, rounded up."""
    return -(-counts // np.array([shape.rows for shape in layout.shapes]))


def _place_padded(lengths: Int[np.ndarray, "texts"], layout: Layout) -> Places:
    counts = _by_width(lengths[None], layout)[0]
    group = np.repeat(np.arange(len(counts))[::-1], counts[::-1])  # longest first
    first = np.concatenate([[0], np.cumsum(counts[::-1])[:-1]])
    row = np.arange(len(lengths)) - np.repeat(first, counts[::-1])
    used = _chunks_in_use(counts[None], layout)[0]
    zeros = np.zeros_like(row)
    return Places(group, row, zeros, zeros, tuple(int(n) for n in used))
