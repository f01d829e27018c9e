"""Batches of few shapes for texts of different lengths."""

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
"""Minimum width of rows in tokens."""
ContextArrays = tuple[Float[Array, "places hidden"], Bool[Array, "places"] | None]
"""Vectors of a context, and the mask of those to attend to (None: all)."""


class TextBatch(NamedTuple):
    """Texts that are encoded together."""

    rows: Int[np.ndarray, "rows"]
    """Indices of the texts."""
    size: int
    """Number of rows of the array; rows beyond the texts are padding."""
    width: int
    """Number of tokens per row."""


def padded_widths(max_length: int, fine: bool) -> Int[np.ndarray, "widths"]:
    """The widths that rows are padded to: powers of two up to `max_length`.

    `fine` adds three widths between powers of two, at least 16 apart: with the lengths
    in benchmarks/encode.py, 0.90 of the tokens are real instead of 0.70, at the cost of
    12 compilations instead of 5 for up to 256 tokens.
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
    widths: Int[np.ndarray, "widths"],
    least: int,
    devices: int = 1,
) -> list[TextBatch]:
    """Sorts texts by length and groups them into batches of few shapes.

    Each text goes to the narrowest width that holds it. The texts of a width fill
    batches of `batch_size` rows per device, then of a quarter of that, and so on down
    to `least`; the remaining ones go to the next width, so that only the last batch has
    rows of padding. The longest texts come first.

    Args:
      lengths: number of tokens of each text.
      batch_size: maximum number of rows per device.
      widths: widths in ascending order; no text is longer than the last.
      least: number of rows per device in the smallest batches.
      devices: number of devices that batches are split over.

    Raises:
      ValueError: `batch_size` is not a positive integer.
    """
    check_count("batch_size", batch_size)
    sizes = [batch_size]
    while sizes[-1] > least:
        sizes.append(max(sizes[-1] // 4, least))
    order = np.argsort(lengths, kind="stable")
    ends = np.searchsorted(lengths[order], widths, side="right")
    found, start = [], 0
    for width, end in zip(widths.tolist(), ends.tolist(), strict=True):
        for size in (size * devices for size in sizes):
            while end - start >= size:
                found.append(TextBatch(order[start : start + size], size, width))
                start += size
    if start < len(order):
        width = int(widths[np.searchsorted(widths, lengths[order[-1]])])
        found.append(TextBatch(order[start:], sizes[-1] * devices, width))
    return found[::-1]


def context_arrays(context: Context, most: int, mesh: Mesh) -> ContextArrays:
    """The vectors of a context, padded to one of a few sizes up to `most`.

    Args:
      context: the context.
      most: maximum number of vectors, C.
      mesh: mesh of the devices that encode with them.
    """
    vectors = context.vectors[context.mask]
    missing = _padded_size(len(vectors), most, mesh) - len(vectors)
    if not missing:
        return jnp.asarray(vectors), None
    mask = np.arange(len(vectors) + missing) < len(vectors)
    return jnp.asarray(np.pad(vectors, ((0, missing), (0, 0)))), jnp.asarray(mask)


def _padded_size(size: int, most: int, mesh: Mesh) -> int:
    """Number of vectors to pad to, for few compilations."""
    if size == 0:  # the model uses its null vector throughout
        return 0
    if platform(mesh) != "cpu":  # padding costs less than a compilation
        return most
    return min(most, max(LEAST_WIDTH, 1 << (size - 1).bit_length()))
