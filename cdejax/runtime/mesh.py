"""Devices in the order in which programs use them, for any number of hosts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from cdejax.typing import Device

DATA = "data"
"""The axis along which rows are split."""


def group_by_slice(devices: Sequence[Device]) -> list[list[Device]]:
    """Devices by what fast links connect: TPU slices, GPU hosts.

    JAX numbers them. A device without such a number is in slice 0.
    """
    ordered = sorted(devices, key=_slice_of)
    return [list(part) for _, part in itertools.groupby(ordered, _slice_of)]


def arrange_devices(
    devices: Sequence[Device], group: int = 1
) -> Shaped[np.ndarray, "groups group"]:
    """Devices in groups of neighbours, slice by slice; no group leaves its slice.

    Args:
      devices: in the order of `jax.devices()`.
      group: how many devices are in a group; divides the devices of every slice.
    """
    return np.concatenate([_in_slice(part, group) for part in group_by_slice(devices)])


def _slice_of(device: Device) -> int:
    # Some have none: the devices of a topology that is one slice, say.
    return getattr(device, "slice_index", None) or 0


def _in_slice(devices: list[Device], group: int) -> Shaped[np.ndarray, "groups group"]:
    """Groups that are boxes of a TPU slice's torus; elsewhere in the order given."""
    shape = (len(devices) // group, group)
    if devices[0].platform == "tpu":
        try:
            return mesh_utils.create_device_mesh(
                shape, devices, allow_split_physical_axes=True
            )
        except (AssertionError, TypeError, ValueError):
            # JAX places boxes of chips only, of a v4 no single cores, and misses some
            # sizes (10). The order of `jax.devices()`, in which cores of a chip and
            # chips of a host follow each other, does then.
            pass
    plain = np.empty(len(devices), object)
    plain[:] = devices
    return plain.reshape(shape)


@functools.cache
def local_mesh() -> Mesh:
    """All devices of this process along `data`: what needs no other process."""
    devices = arrange_devices(jax.local_devices())[:, 0]
    return Mesh(devices, (DATA,), axis_types=(AxisType.Explicit,))


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Equal parts of the rows on every device."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())
