"""Bootstrap intervals of per-query scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_CELLS = 1 << 22


class Interval(NamedTuple):
    """A mean with its percentile bootstrap interval."""

    mean: float
    low: float
    high: float


def interval(
    values: Float[np.ndarray, "queries"],
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of the mean (Efron and Tibshirani 1993, ch. 13).

    The resamples depend only on the number of queries and the seed, so systems scored
    on the same queries are resampled identically.

    Raises:
      ValueError: no values, a value that is not finite, fewer than 2 resamples, or a
        level outside (0, 1).
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(
            f"values of shape {values.shape}: one finite number per query is needed"
        )
    if resamples < 2 or not 0 < level < 1:
        raise ValueError(
            f"resamples {resamples}, level {level}: need 2 or more, and 0 < level < 1"
        )
    means = _means(values, resamples, np.random.default_rng(seed))
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def paired(
    ours: Float[np.ndarray, "queries"],
    theirs: Float[np.ndarray, "queries"],
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of the mean difference `ours - theirs` over the same queries.

    Raises:
      ValueError: the systems were scored on different numbers of queries, or as
        `interval`.
    """
    if np.shape(ours) != np.shape(theirs):
        raise ValueError(
            f"{np.shape(ours)} and {np.shape(theirs)} scores: pairs need the same "
            "queries in the same order"
        )
    return interval(np.subtract(ours, theirs), resamples, seed, level)


def _means(
    values: Float[np.ndarray, "queries"], resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "resamples"]:
    """Means of resamples with replacement, in blocks that bound the memory used."""
    block = max(1, _CELLS // len(values))
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    drawn = (rng.integers(len(values), size=(size, len(values))) for size in sizes)
    return np.concatenate([values[rows].mean(axis=1) for rows in drawn])
