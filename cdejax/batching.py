"""Texts of different lengths in few shapes, so that little is padded and compiled."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cdejax.context import Context

LEAST_WIDTH = 16
"""The narrowest rows, in tokens."""
ContextArrays = tuple[Float[Array, "places hidden"], Bool[Array, "places"] | None]
"""Vectors of a context, and which of them count (None: all)."""


def batches(
    lengths: Int[np.ndarray, "texts"], batch_size: int, max_length: int, least: int = 8
) -> Iterator[tuple[Int[np.ndarray, "rows"], int, int]]:
    """Cuts texts into batches: (row numbers, rows of the array, width).

    A text's width depends on its own length only: the next power of two, `max_length`
    at most. The texts of a width fill batches of `batch_size`, a quarter of it, and so
    on down to `least`; only the last is padded. The longest come first.

    Raises:
      ValueError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size}: give 1 or more")
    widths = LEAST_WIDTH << np.arange(max(max_length - 1, 1).bit_length())
    bucket = np.searchsorted(widths, lengths)
    for index in np.unique(bucket)[::-1]:
        rows = np.flatnonzero(bucket == index)
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        while len(rows):
            size = batch_size
            while size > len(rows) and size > least:
                size = max(size // 4, least)
            yield rows[:size], size, min(int(widths[index]), max_length)
            rows = rows[size:]


def context_arrays(context: Context, most: int) -> ContextArrays:
    """A context's vectors, padded to one of a few sizes up to `most`."""
    vectors = context.vectors[context.mask]
    missing = _places(len(vectors), most) - len(vectors)
    if not missing:
        return jnp.asarray(vectors), None
    mask = np.arange(len(vectors) + missing) < len(vectors)
    return jnp.asarray(np.pad(vectors, ((0, missing), (0, 0)))), jnp.asarray(mask)


def _places(size: int, most: int) -> int:
    """Places for a context of `size`: each number of places is compiled once."""
    if size == 0:  # the model puts its null vector in every place
        return 0
    if jax.default_backend() != "cpu":  # padding costs less than a compilation
        return most
    return min(most, max(LEAST_WIDTH, 1 << (size - 1).bit_length()))
