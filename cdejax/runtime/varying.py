"""Marks what differs between devices inside `jax.shard_map`."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

T = TypeVar("T")


def vary_like(tree: T, like: Any) -> T:
    """Marks arrays as varying over the mesh axes that any array of `like` varies over.

    The carry of a loop has to vary as what the loop makes of it, and a parameter as its
    gradient. Where nothing varies (outside `jax.shard_map`, and inside one that does
    not check it), the arrays are returned as they are.

    Args:
      tree: a pytree of arrays.
      like: a pytree of arrays.
    """
    axes = frozenset[str]().union(*map(_axes, jax.tree.leaves(like)))

    def mark(x: Any) -> Any:
        missing = tuple(sorted(axes - _axes(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(mark, tree)


def _axes(x: Any) -> frozenset[str]:
    """Mesh axes that an array varies over."""
    return jax.typeof(x).manual_axis_type.varying
