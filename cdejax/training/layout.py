"""Static shapes for the texts of a step, planned from lengths known beforehand.

Within a step order is free: the texts of a side are sorted by length, dealt to the
devices and cut into chunks, and each chunk is as wide as its longest text. A *layout*
fixes the widths of all chunks of a step, and a step is compiled once per layout. Few
layouts, each covering many steps, bound the compilations; what that costs in padding is
counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

_MAX_CANDIDATES = 128


class Layout(NamedTuple):
    """Widths of the chunks on each device, longest first, one tuple per side."""

    widths: tuple[tuple[int, ...], ...]


def round_width(length: int) -> int:
    """The width for texts of a length: a multiple of 8, 16, 32 or 64 as it grows."""
    for limit, step in ((64, 8), (128, 16), (256, 32)):
        if length <= limit:
            return -(-max(length, 1) // step) * step
    return -(-length // 64) * 64


def chunk_widths(
    lengths: Int[np.ndarray, "texts"], chunk: int, devices: int
) -> tuple[int, ...]:
    """Widths that one side of a step needs, longest chunk first.

    Sorted texts are dealt round robin, so the first chunk of every device together
    holds the `chunk * devices` longest texts.
    """
    longest_first = np.sort(np.asarray(lengths))[::-1]
    return tuple(round_width(int(n)) for n in longest_first[:: chunk * devices])


@dataclass(frozen=True)
class LayoutPlan:
    """Few layouts for many steps."""

    layouts: tuple[Layout, ...]
    chunks: tuple[int, ...]
    """Rows per chunk, for each side."""
    real_tokens: int
    """Tokens of all steps."""
    padded_tokens: int
    """Positions that are computed for them, on all devices."""

    def find(self, needed: Layout) -> Layout:
        """The cheapest layout that covers the needed widths.

        Raises:
          ValueError: none does; the plan was made for other steps.
        """
        covering = [layout for layout in self.layouts if _covers(layout, needed)]
        if not covering:
            raise ValueError(
                f"no planned layout covers the widths {needed.widths}; "
                "the layouts were planned for another batch plan"
            )
        return min(covering, key=self.cost)

    def cost(self, layout: Layout) -> int:
        """Token positions that one device computes in a step of a layout."""
        return _cost(layout, self.chunks)

    @property
    def padding_efficiency(self) -> float:
        """Share of computed positions that are real tokens."""
        return self.real_tokens / max(self.padded_tokens, 1)


def plan_layouts(
    needed: Sequence[Layout],
    real_tokens: int,
    *,
    chunks: tuple[int, ...],
    devices: int,
    max_layouts: int,
    max_widths: int,
) -> LayoutPlan:
    """Chooses at most `max_layouts` layouts that cover every step's needed widths.

    Steps are ordered by cost and cut into consecutive groups, each covered by the
    elementwise largest widths of its members; dynamic programming finds the cuts that
    compute the fewest positions.

    Args:
      needed: widths that each step needs (`chunk_widths` of every side).
      real_tokens: tokens of all steps, for the padding efficiency.
      chunks: rows per chunk, for each side.
      devices: devices that every chunk position stands for.
      max_layouts: layouts, and so compilations, at most.
      max_widths: widths per side of a layout at most; each one is a copy of the encoder
        in the compiled step.
    """
    unique, counts = _unique(needed)
    table, counts, sides = _candidates(unique, counts, chunks)
    merge = functools.partial(_merge_widths, sides=sides, max_widths=max_widths)
    groups = _best_groups(table, counts, _weights(sides, chunks), merge, max_layouts)
    layouts = tuple(dict.fromkeys(_to_layout(row, sides) for row in groups))
    plan = LayoutPlan(layouts, chunks, real_tokens, 0)
    found = [plan.find(layout) for layout in unique]
    padded = sum(
        _cost(layout, chunks) * int(n)
        for layout, n in zip(found, _unique(needed)[1], strict=True)
    )
    return LayoutPlan(layouts, chunks, real_tokens, padded * devices)


def _unique(needed: Sequence[Layout]) -> tuple[list[Layout], Int[np.ndarray, "n"]]:
    counts: dict[Layout, int] = {}
    for layout in needed:
        counts[layout] = counts.get(layout, 0) + 1
    return list(counts), np.array(list(counts.values()), np.int64)


def _candidates(
    unique: list[Layout], counts: Int[np.ndarray, "n"], chunks: tuple[int, ...]
) -> tuple[Int[np.ndarray, "n widths"], Int[np.ndarray, "n"], tuple[int, ...]]:
    """Distinct layouts as rows of widths, by cost, thinned to a bounded number."""
    sides = tuple(len(side) for side in unique[0].widths)
    table = np.array([sum(layout.widths, ()) for layout in unique], np.int64)
    order = np.argsort(table @ _weights(sides, chunks), kind="stable")
    table, counts = table[order], counts[order]
    parts = np.array_split(np.arange(len(table)), min(len(table), _MAX_CANDIDATES))
    table = np.array([table[part].max(0) for part in parts])
    return table, np.array([counts[part].sum() for part in parts]), sides


def _best_groups(
    table: Int[np.ndarray, "n widths"],
    counts: Int[np.ndarray, "n"],
    weights: Int[np.ndarray, "widths"],
    merge: Callable[[np.ndarray], np.ndarray],
    max_groups: int,
) -> list[Int[np.ndarray, "widths"]]:
    """Consecutive groups of rows whose covers compute the fewest positions."""
    n = len(table)
    cover = [np.maximum.accumulate(table[start:], 0) for start in range(n)]
    cover = [np.apply_along_axis(merge, 1, c) for c in cover]
    cost = np.full((n, n + 1), np.inf)
    for start in range(n):
        rows = np.cumsum(counts[start:])
        cost[start, start + 1 :] = (cover[start] @ weights) * rows
    best, cut = cost[0].copy(), [np.zeros(n + 1, int)]
    for _ in range(1, min(max_groups, n)):
        best[0] = 0  # a group may also be the first one
        total = best[:n, None] + cost
        cut.append(total.argmin(0))
        best = total.min(0)
    groups, end = [], n
    for starts in reversed(cut):
        start = int(starts[end])
        groups.append(cover[start][end - start - 1])
        end = start
        if end == 0:
            break
    return groups


def _merge_widths(
    widths: Int[np.ndarray, "widths"], sides: tuple[int, ...], max_widths: int
) -> Int[np.ndarray, "widths"]:
    """Raises widths until each side has few distinct ones, at the least cost."""
    out, start = widths.copy(), 0
    for length in sides:
        side = out[start : start + length]
        while len(distinct := np.unique(side)) > max_widths:
            added = np.diff(distinct) * [(side == w).sum() for w in distinct[:-1]]
            lowest = int(added.argmin())
            side[side == distinct[lowest]] = distinct[lowest + 1]
        start += length
    return out


def _weights(sides: tuple[int, ...], chunks: tuple[int, ...]) -> np.ndarray:
    return np.repeat(chunks, sides)


def _cost(layout: Layout, chunks: tuple[int, ...]) -> int:
    """Positions that one device computes in a step."""
    sides = zip(layout.widths, chunks, strict=True)
    return sum(sum(widths) * chunk for widths, chunk in sides)


def _covers(layout: Layout, needed: Layout) -> bool:
    pairs = zip(layout.widths, needed.widths, strict=True)
    return all(
        len(have) == len(need) and all(h >= n for h, n in zip(have, need, strict=True))
        for have, need in pairs
    )


def _to_layout(row: Int[np.ndarray, "widths"], sides: tuple[int, ...]) -> Layout:
    cuts = np.cumsum(sides)[:-1]
    return Layout(tuple(tuple(int(w) for w in side) for side in np.split(row, cuts)))
