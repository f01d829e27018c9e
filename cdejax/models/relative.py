"""Bucketed relative positions: T5 and MPNet learn a score bias for each bucket."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cdejax.typing import AnyArray


def buckets(
    positions: Int[AnyArray, "*batch length"], count: int = 32, farthest: int = 128
) -> Int[Array, "*batch length length"]:
    """The bucket of every (query, key) pair of positions, for both directions.

    Half of the buckets are for keys at or before the query, half for keys after it. In
    each half, the first half of the buckets hold one distance each; the others hold
    ranges that grow geometrically up to `farthest`, and the last bucket also holds all
    larger distances (T5, arXiv 1910.10683, section 2.1). The starts of the ranges are
    integers computed once on the host: a logarithm per pair would round differently
    on different devices.

    Args:
      positions: positions of the tokens; one row for all texts, or one row per text.
      count: number of buckets, a multiple of 4.
      farthest: distance from which all distances share the last bucket.
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
    """The bias of each head for the score of every (query, key) pair.

    It takes heads x length² floats, per row if positions differ between rows.
    """
    return jnp.moveaxis(table[buckets(positions, len(table), farthest)], -1, -3)
