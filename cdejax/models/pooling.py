"""Pooling: token states to one vector per text, in float32, for any padding."""

from __future__ import annotations

from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.kernels.padding import length_mask
from cdejax.typing import AnyArray

Mode = Literal["mean", "cls", "max", "last", "weightedmean", "mean_sqrt_len"]
Pooling = str
"""One mode, or several whose vectors are concatenated: `mean`, `cls+max`."""


def check_pooling(pooling: str) -> Pooling:
    """Returns the name of a pooling; raises ValueError if it is unknown."""
    for mode in pooling.split("+"):
        if mode not in get_args(Mode):
            raise ValueError(
                f"pooling {mode!r} is not one of {get_args(Mode)} (or several, as in "
                "'cls+mean')"
            )
    return pooling


def pooled_size(hidden: int, pooling: Pooling) -> int:
    """Size of a pooled vector, given the size of a token's state."""
    return hidden * len(pooling.split("+"))


def token_mask(
    shape: tuple[int, ...],
    mask: Bool[AnyArray, "batch length"] | None,
    lengths: Int[AnyArray, "batch"] | None,
) -> Bool[Array, "batch length"]:
    """The mask of real tokens from a mask, lengths, or neither (all are real).

    Raises:
      ValueError: both a mask and lengths are given.
    """
    if mask is not None and lengths is not None:
        raise ValueError("give a mask or lengths, not both")
    if mask is not None:
        return jnp.asarray(mask).astype(bool)
    if lengths is not None:
        return length_mask(jnp.asarray(lengths), shape[1])
    return jnp.ones(shape, bool)


def text_positions(
    length: int, mask: Bool[AnyArray, "batch length"] | None
) -> Int[AnyArray, "*batch length"]:
    """Positions counted from each row's first real token (0 before it).

    They make embeddings independent of the side of the padding. Without a mask, they
    are a NumPy array: known at compile time.
    """
    positions = np.arange(length)
    if mask is None:
        return positions
    first = jnp.argmax(jnp.asarray(mask).astype(bool), axis=1, keepdims=True)
    return jnp.maximum(positions - first, 0)


def pool(
    hidden: Float[Array, "batch length dim"],
    mask: Bool[Array, "batch length"],
    pooling: Pooling,
    skip: Int[AnyArray, "*batch"] | int | None = None,
) -> Float[Array, "batch pooled"]:
    """Pools token states as sentence-transformers' `Pooling` does, in float32.

    The modes are `mean` and `max` over the real tokens; `cls` and `last`, the first and
    the last real token; `weightedmean`, with weights 1, 2, … from the first real token;
    and `mean_sqrt_len`, the sum divided by the square root of the number of tokens.
    Vectors of several modes are concatenated.

    A row without real tokens yields 0 (`cls`: the state of its first token).

    Args:
      hidden: token states.
      mask: which tokens are real; padding may be on either side.
      pooling: the mode or modes.
      skip: number of real tokens at the start of each text that are not pooled (those
        of a prompt); the other tokens keep their weights.
    """
    places = jnp.asarray(text_positions(mask.shape[1], mask))
    if skip is not None:
        mask = mask & (places >= jnp.asarray(skip)[..., None])
    vectors = [_pool(hidden, mask, places, mode) for mode in pooling.split("+")]
    return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)


def _pool(
    hidden: Float[Array, "batch length dim"],
    mask: Bool[Array, "batch length"],
    places: Int[Array, "batch length"],
    mode: str,
) -> Float[Array, "batch dim"]:
    if mode in ("cls", "last"):
        return _one_token(hidden, mask, mode)
    real = mask[..., None]
    if mode == "max":
        highest = jnp.where(real, hidden.astype(jnp.float32), -jnp.inf).max(1)
        return jnp.where(mask.any(1, keepdims=True), highest, 0.0)
    states = jnp.where(real, hidden.astype(jnp.float32), 0.0)
    if mode == "weightedmean":
        weights = jnp.where(mask, places + 1, 0)[..., None]
        return (states * weights).sum(1) / jnp.maximum(weights.sum(1), 1)
    count = jnp.maximum(mask.sum(1, keepdims=True), 1)
    return states.sum(1) / (count if mode == "mean" else jnp.sqrt(count))


def _one_token(
    hidden: Float[Array, "batch length dim"],
    mask: Bool[Array, "batch length"],
    mode: str,
) -> Float[Array, "batch dim"]:
    last = jnp.max(jnp.where(mask, jnp.arange(mask.shape[1]), 0), axis=1)
    index = jnp.argmax(mask, axis=1) if mode == "cls" else last
    chosen = jnp.take_along_axis(hidden, index[:, None, None], axis=1)[:, 0]
    chosen = chosen.astype(jnp.float32)
    if mode == "cls":
        return chosen
    return jnp.where(mask.any(1, keepdims=True), chosen, 0.0)
