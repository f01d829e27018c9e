"""Texts of different lengths in few shapes, so that little is padded and compiled."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from cdejax.counts import check_count
from cdejax.models.context import Context
from cdejax.runtime.platforms import platform

LEAST_WIDTH = 16
"""The narrowest rows, in tokens."""
ContextArrays = tuple[Float[Array, "places hidden"], Bool[Array, "places"] | None]
"""Vectors of a context, and which of them count (None: all)."""


class TextBatch(NamedTuple):
    """Texts that are encoded together."""

    rows: Int[np.ndarray, "rows"]
    """Which texts."""
    size: int
    """Rows of the array; those beyond the texts' are padding."""
    width: int
    """Tokens of a row."""


def padded_widths(max_length: int, fine: bool) -> Int[np.ndarray, "widths"]:
    """The widths that rows are padded to: powers of two, `max_length` at most.

    `fine` puts three more between one power of two and the next, in steps of 16 at
    least: of the lengths in benchmarks/encode.py, 0.90 of the tokens are real in place
    of 0.70, for 12 compilations up to 256 tokens in place of 5.
    """
    found, octave = [], LEAST_WIDTH
    while octave < max_length:
        step = max(LEAST_WIDTH, octave // 4) if fine else octave
        found += range(octave, min(2 * octave, max_length), step)
        octave *= 2
    return np.array([*found, max_length])


def batch_by_length(
    lengths: Int[np.ndarray, "texts"],
    batch_size: int,
    padded_widths: Int[np.ndarray, "widths"],
    least: int,
    devices: int = 1,
) -> list[TextBatch]:
    """Sorts texts by length and cuts them into batches of few shapes.

    Texts go into the narrowest width that holds them and fill batches of `batch_size`
    a device, a quarter of it, and so on down to `least`. What is left of a width goes
    with the next wider one: only the last batch of all is padded with rows. The longest
    come first.

    Args:
      lengths: tokens of every text.
      batch_size: rows on a device.
      widths: ascending; no text is longer than the last.
      least: rows on a device in the smallest batch.
      devices: batches are split over so many.

    Raises:
      ValueError: `batch_size` is no whole number from 1 on.
    """
    check_count("batch_size", batch_size)
    sizes = [batch_size]
    while sizes[-1] > least:
        sizes.append(max(sizes[-1] // 4, least))
    order = np.argsort(lengths, kind="stable")
    ends = np.searchsorted(lengths[order], padded_widths, side="right")
    found, start = [], 0
    for width, end in zip(padded_widths.tolist(), ends.tolist(), strict=True):
        for size in (size * devices for size in sizes):
            while end - start >= size:
                found.append(TextBatch(order[start : start + size], size, width))
                start += size
    if start < len(order):
        width = int(padded_widths[np.searchsorted(padded_widths, lengths[order[-1]])])
        found.append(TextBatch(order[start:], sizes[-1] * devices, width))
    return found[::-1]


def context_arrays(context: Context, most: int, mesh: Mesh) -> ContextArrays:
    """A context's vectors, padded to one of a few sizes up to `most`.

    Args:
      context: the context.
      most: places that the model has.
      mesh: of the devices that are to read them.
    """
    vectors = context.vectors[context.mask]
    missing = _padded_size(len(vectors), most, mesh) - len(vectors)
    if not missing:
        return jnp.asarray(vectors), None
    mask = np.arange(len(vectors) + missing) < len(vectors)
    return jnp.asarray(np.pad(vectors, ((0, missing), (0, 0)))), jnp.asarray(mask)


def _padded_size(size: int, most: int, mesh: Mesh) -> int:
    """Places for a context of `size`: each number of places is compiled once."""
    if size == 0:  # the model puts its null vector in every place
        return 0
    if platform(mesh) != "cpu":  # padding costs less than a compilation
        return most
    return min(most, max(LEAST_WIDTH, 1 << (size - 1).bit_length()))
