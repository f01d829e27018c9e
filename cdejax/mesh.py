"""The devices of this process, as one axis along which rows are split."""

from __future__ import annotations

import functools

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA = "data"
"""The axis."""


@functools.cache
def local_mesh() -> Mesh:
    """All devices of this process along `data`: what needs no other process."""
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), (DATA,), devices=devices)


def split(mesh: Mesh) -> NamedSharding:
    """Equal parts of the rows on every device."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def same(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())
