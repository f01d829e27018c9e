"""Packed rows, which hold several texts: token positions and pooling per text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.pooling import Pooling
from cdejax.typing import AnyArray


def segment_positions(
    segments: Int[AnyArray, "rows width"],
) -> Int[Array, "rows width"]:
    """Positions 0, 1, … of the tokens within their texts; 0 at padding.

    Positions at padding are 0 because a row may have more padding than an encoder has
    learned positions.

    Args:
      segments: for each token, the number of its text within the row; tokens of a text
        are adjacent.
    """
    segments = jnp.asarray(segments)
    index = jnp.arange(segments.shape[1])
    before = jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    first = jnp.where(segments != before, index, 0)
    return jnp.where(segments == 0, 0, index - jax.lax.cummax(first, axis=1))


def pool_segments(
    hidden: Float[Array, "rows width dim"],
    segments: Int[AnyArray, "rows width"],
    slots: int,
    pooling: Pooling,
) -> Float[Array, "rows slots pooled"]:
    """Pools each packed text as `pool` does, in float32.

    Args:
      hidden: token states.
      segments: for each token, the number of its text within the row, from 1; 0 for
        padding.
      slots: maximum number of texts per row; vectors of empty slots are 0.
      pooling: as in `pool`.
    """
    states = hidden.astype(jnp.float32)
    member = jnp.asarray(segments)[:, None, :] == jnp.arange(1, slots + 1)[:, None]
    places = segment_positions(segments)
    vectors = [_pool(states, member, places, m) for m in pooling.split("+")]
    return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)


def _pool(
    states: Float[Array, "rows width dim"],
    member: Bool[Array, "rows slots width"],
    places: Int[Array, "rows width"],
    mode: str,
) -> Float[Array, "rows slots dim"]:
    if mode == "max":
        return _highest(states, member)
    count = member.sum(-1, keepdims=True)
    at = places[:, None, :]
    weights = {
        "mean": lambda: member / jnp.maximum(count, 1),
        "mean_sqrt_len": lambda: member / jnp.sqrt(jnp.maximum(count, 1)),
        "weightedmean": lambda: (
            member * (at + 1) / jnp.maximum(count * (count + 1) / 2, 1)
        ),
        "cls": lambda: member & (at == 0),
        "last": lambda: member & (at == count - 1),
    }[mode]()
    return jnp.einsum(
        "rsw,rwd->rsd",
        weights.astype(jnp.float32),
        states,
        precision=jax.lax.Precision.HIGHEST,
    )


def _highest(
    states: Float[Array, "rows width dim"], member: Bool[Array, "rows slots width"]
) -> Float[Array, "rows slots dim"]:
    """Maximum per slot, one slot at a time: all would be [rows, slots, width, dim]."""

    def one(mask: Bool[Array, "rows width"]) -> Float[Array, "rows dim"]:
        highest = jnp.where(mask[..., None], states, -jnp.inf).max(1)
        return jnp.where(mask.any(1, keepdims=True), highest, 0.0)

    return jnp.moveaxis(jax.lax.map(one, jnp.moveaxis(member, 1, 0)), 0, 1)
