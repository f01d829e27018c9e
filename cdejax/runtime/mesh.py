"""Device meshes, for any number of hosts."""

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
"""Name of the mesh axis that rows are sharded over."""


def group_by_slice(devices: Sequence[Device]) -> list[list[Device]]:
    """Groups devices that fast links connect: TPU slices or GPU hosts.

    JAX numbers these. A device without such a number is in slice 0.
    """
    ordered = sorted(devices, key=_slice_of)
    return [list(part) for _, part in itertools.groupby(ordered, _slice_of)]


def arrange_devices(
    devices: Sequence[Device], group: int = 1
) -> Shaped[np.ndarray, "groups group"]:
    """Arranges devices in groups of neighbours within a slice, slice by slice.

    Args:
      devices: in the order of `jax.devices()`.
      group: number of devices per group; must divide that of every slice.
    """
    return np.concatenate([_in_slice(part, group) for part in group_by_slice(devices)])


def _slice_of(device: Device) -> int:
    # Some have none: the devices of a topology that is one slice, say.
    return getattr(device, "slice_index", None) or 0


def _in_slice(devices: list[Device], group: int) -> Shaped[np.ndarray, "groups group"]:
    """Groups that are boxes of a TPU's torus; elsewhere in the given order."""
    shape = (len(devices) // group, group)
    if devices[0].platform == "tpu":
        try:
            return mesh_utils.create_device_mesh(
                shape, devices, allow_split_physical_axes=True
            )
        except (AssertionError, TypeError, ValueError):
            # JAX places only boxes of chips, no single cores of a v4, and fails for
            # some sizes (10). Then the order of `jax.devices()` is good enough: cores
            # of a chip and chips of a host are adjacent.
            pass
    plain = np.empty(len(devices), object)
    plain[:] = devices
    return plain.reshape(shape)


@functools.cache
def local_mesh() -> Mesh:
    """All devices of this process along `data`, for work without other processes."""
    devices = arrange_devices(jax.local_devices())[:, 0]
    return Mesh(devices, (DATA,), axis_types=(AxisType.Explicit,))


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of the first dimension, an equal part on every device."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding with the whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def local_indices(mesh: Mesh) -> list[int]:
    """Indices of this process's devices in the mesh."""
    here = jax.process_index()
    flat = enumerate(mesh.devices.flat)
    return [i for i, device in flat if device.process_index == here]
