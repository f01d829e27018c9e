"""Packed rows: several texts share a row, in the fullest in which they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from cdejax.training.layout import Layout, Places, Shape, sample_steps
from cdejax.training.rows import PackedRows

_GOOD = 0.97
"""Padding efficiency beyond which wider rows are not worth their attention cost."""
_NARROWEST = 128


@dataclass(frozen=True)
class PackedLayout(Layout):
    """Rows of one width for several texts each."""

    kind = "packed"
    rows = PackedRows

    def _place(self, lengths: Int[np.ndarray, "texts"]) -> Places:
        (shape,) = self.shapes
        row, start, slot = _best_fit(lengths.tolist(), shape.width, shape.slots)
        counts = (int(row.max(initial=0)) // shape.rows + 1,)
        return Places(np.zeros_like(row), row, start, slot, counts)

    def best_positions(self, lengths: Int[np.ndarray, "texts"]) -> int:
        """As `positions`, without empty rows and with all rows but the last full."""
        width = self.shapes[0].width
        return int(-(-lengths.sum() // width) * width)


def plan_packed(
    steps: Sequence[Int[np.ndarray, "devices texts"]], chunk_tokens: int
) -> PackedLayout:
    """Plans a packed layout: rows of one width for several texts each.

    The width is the smallest power of two that holds the longest text and is filled
    well. A chunk has as many rows as `chunk_tokens` allows, or slightly fewer if that
    leaves fewer empty rows in the last chunk.

    Args:
      steps: lengths of the texts on each device in each step, longest first.
      chunk_tokens: maximum number of token positions per chunk (but at least one row).
    """
    sample = [lengths[0].tolist() for lengths in sample_steps(steps)]
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
    return PackedLayout((shape,))


def _row_width(sample: list[list[int]], longest: int) -> int:
    """The smallest power of two that is filled well, or else the best of four."""
    width = max(_NARROWEST, 1 << (longest - 1).bit_length())
    real = sum(map(sum, sample))
    best, found = 0.0, width
    # Attention costs more in wider rows, so these have to be filled clearly better.
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
        # The lowest bit from `length` on is the fullest row in which the text fits.
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
