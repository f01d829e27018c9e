"""From token states to one vector per text, in float32, whatever the padding."""

from __future__ import annotations

from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.attention import length_mask
from cdejax.typing import AnyArray

Pooling = Literal["mean", "cls", "last"]


def check_pooling(pooling: str) -> Pooling:
    """Returns the name of a pooling; ValueError for an unknown one."""
    for known in get_args(Pooling):
        if pooling == known:
            return known
    raise ValueError(f"pooling {pooling!r} is not one of {get_args(Pooling)}")


def token_mask(
    shape: tuple[int, ...],
    mask: Bool[AnyArray, "batch length"] | None,
    lengths: Int[AnyArray, "batch"] | None,
) -> Bool[Array, "batch length"]:
    """The mask that a mask, lengths, or neither (all tokens real) stands for."""
    if mask is not None and lengths is not None:
        raise ValueError("give a mask or lengths, not both")
    if mask is not None:
        return jnp.asarray(mask).astype(bool)
    if lengths is not None:
        return length_mask(jnp.asarray(lengths), shape[1])
    return jnp.ones(shape, bool)


def text_positions(
    length: int, mask: Bool[AnyArray, "batch length"] | None
) -> Int[Array, "*batch length"]:
    """Positions counted from each row's first real token (0 before it).

    They make embeddings independent of the padding's side.
    """
    positions = jnp.arange(length)
    if mask is None:
        return positions
    first = jnp.argmax(jnp.asarray(mask).astype(bool), axis=1, keepdims=True)
    return jnp.maximum(positions - first, 0)


def pool(
    hidden: Float[Array, "batch length dim"],
    mask: Bool[Array, "batch length"],
    pooling: Pooling,
) -> Float[Array, "batch dim"]:
    """Mean of the real tokens, the first (`cls`) or the `last` real one, in float32.

    A row without real tokens has mean 0.
    """
    if pooling == "mean":
        states = jnp.where(mask[..., None], hidden.astype(jnp.float32), 0.0)
        return states.sum(1) / jnp.maximum(mask.sum(1, keepdims=True), 1)
    steps = jnp.arange(mask.shape[1])
    last = jnp.max(jnp.where(mask, steps, 0), axis=1)
    index = jnp.argmax(mask, axis=1) if pooling == "cls" else last
    chosen = jnp.take_along_axis(hidden, index[:, None, None], axis=1)
    return chosen[:, 0].astype(jnp.float32)
