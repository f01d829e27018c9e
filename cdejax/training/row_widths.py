"""The widths of padded rows that pad the least."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int


def best_widths(histogram: Int[np.ndarray, "longest"], most: int) -> tuple[int, ...]:
    """The widths, multiples of 8 in ascending order, with the least padding.

    Found exactly, by dynamic programming.

    Args:
      histogram: number of texts of each length.
      most: maximum number of widths.
    """
    # Lengths count in units of 8, which keeps the table of costs small.
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
    # best[j]: least cost of all texts of at most 8 j tokens, with one more width in
    # every round; cuts[round][j]: where the width below the widest ends.
    best, cuts = cost[0], []
    for _ in range(1, min(most, steps)):
        total = best[:, None] + cost
        total[0] = cost[0]
        cuts.append(total.argmin(0))
        best = total.min(0)
    # The longest text needs the widest row; from there, the cuts lead down.
    found, end = [], steps
    for cut in reversed([np.zeros(steps + 1, int), *cuts]):
        found.append(8 * end)
        end = int(cut[end])
        if end == 0:
            break
    return tuple(sorted(set(found)))
