"""Relative positions in buckets, as T5 and MPNet learn a bias for each."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cdejax.typing import AnyArray


def buckets(
    positions: Int[AnyArray, "*batch length"], count: int = 32, farthest: int = 128
) -> Int[Array, "*batch length length"]:
    """The bucket of every (query, key) pair of positions, both directions apart.

    Half of the buckets are for keys at or before the query, half for keys after it; of
    each half, the first half holds one distance each, the rest ranges that grow
    geometrically up to `farthest`, and the last one all beyond (T5, arXiv 1910.10683,
    section 2.1). The ranges' starts are whole numbers found here once: a logarithm per
    pair rounds differently from device to device.

    Args:
      positions: where tokens stand; one row for all texts, or one for each.
      count: all buckets, a multiple of 4.
      farthest: distance from which on all share the last bucket.
    """
    exact = count // 4
    growth = farthest / exact
    ranges = (math.ceil(exact * growth ** (i / exact)) for i in range(exact))
    starts = [*range(1, exact), *ranges]
    of_distance = np.searchsorted(starts, np.arange(farthest + 1), side="right")
    offset = positions[..., None, :] - positions[..., :, None]
    bucket = jnp.asarray(of_distance)[jnp.minimum(jnp.abs(offset), farthest)]
    return bucket + jnp.where(offset > 0, 2 * exact, 0)


def bucket_bias(
    table: Float[Array, "buckets heads"],
    positions: Int[AnyArray, "*batch length"],
    farthest: int = 128,
) -> Float[Array, "*batch heads length length"]:
    """The bias of each head on the scores of every (query, key) pair.

    Memory is heads x length² floats, times the rows where positions differ by row.
    """
    return jnp.moveaxis(table[buckets(positions, len(table), farthest)], -1, -3)
