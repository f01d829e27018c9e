"""Descriptions of padding and packing, and rows that share a prefix."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

ALL = slice(None)
"""All positions of a row."""


class Padding(NamedTuple):
    """Which tokens may be attended to, in one of three forms (none is given: all)."""

    mask: Bool[Array, "batch length"] | None = None
    """Which tokens are real."""
    lengths: Int[Array, "batch"] | None = None
    """Number of real tokens at the start of each row."""
    segments: Int[Array, "batch length"] | None = None
    """Id of each token's text, within which it attends; 0 is padding."""

    def check(self) -> None:
        """Raises ValueError if more than one form is given."""
        given = [name for name, value in self._asdict().items() if value is not None]
        if len(given) > 1:
            raise ValueError(
                f"give {given[0]} or {given[1]}, not both: one of mask, lengths and "
                "segments says what is padding"
            )


class Rows(NamedTuple):
    """The tokens of a batch whose rows share a prefix.

    `jax.tree.map(layer, rows)` applies a token-wise layer to the prefix only once.
    """

    front: Float[Array, "1 front dim"]
    """The shared prefix."""
    own: Float[Array, "batch length dim"]
    """The rest of each row."""


def join_front(
    x: Float[Array, "batch length dim"] | Rows,
) -> Float[Array, "batch total d"]:
    """The tokens of each row in one array; an array is returned unchanged."""
    if not isinstance(x, Rows):
        return x
    # In float32, so that the prefix's gradient is summed over rows in float32.
    wide = x.front.astype(jnp.promote_types(x.front.dtype, jnp.float32))
    front = jnp.broadcast_to(wide, (x.own.shape[0], *x.front.shape[1:]))
    return jnp.concatenate([front.astype(x.own.dtype), x.own], axis=1)


def total_length(x: Float[Array, "batch length dim"] | Rows) -> int:
    """Number of tokens per row."""
    return sum(part.shape[1] for part in jax.tree.leaves(x))


def length_mask(
    lengths: Int[Array, "batch"], length: int
) -> Bool[Array, "batch length"]:
    """Mask of right-padded rows: True on the first `lengths` positions of each."""
    return jnp.arange(length) < lengths[:, None]


def compact(
    mask: Bool[Array, "batch length"],
) -> tuple[Int[Array, "batch length"], Int[Array, "batch length"]]:
    """The order that moves each row's real tokens to the start, and its inverse.

    `jnp.take_along_axis` with the order turns any padding into right padding, with
    lengths `mask.sum(1)`; with the inverse it restores the original order.
    """
    order = jnp.argsort(~mask, axis=1, stable=True)
    return order, jnp.argsort(order, axis=1)
