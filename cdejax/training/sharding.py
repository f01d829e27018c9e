"""Sharding of parameters, optimiser state and batches over the mesh.

The mesh has two axes. The rows of a batch are sharded over both. So are parameters and
optimiser state, each array along one of its dimensions, so that every element is
updated on one device. Along `data`, parameters are gathered once per step, and their
gradients are reduce-scattered once (ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054).
Along `fsdp`, for models that do not fit on one device, this is done for every layer of
every chunk, so that no device ever holds more than one layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from cdejax.runtime.global_arrays import distribute
from cdejax.runtime.mesh import DATA, arrange_devices, group_by_slice
from cdejax.typing import Device

FSDP = "fsdp"
ROWS = PartitionSpec((DATA, FSDP))
"""Sharding of a batch's rows."""
EVERYWHERE = PartitionSpec()
T = TypeVar("T")


def make_mesh(devices: Sequence[Device] | None = None, fsdp: int = 1) -> Mesh:
    """A mesh of the given devices (default: all), for any number of hosts and slices.

    Devices along `fsdp` are neighbours within a slice (a TPU slice or a GPU host);
    `data` runs through one slice after the other.

    Raises:
      ValueError: the number of devices of a slice is not a multiple of `fsdp`.
    """
    devices = list(jax.devices() if devices is None else devices)
    _check_division(devices, fsdp)
    return Mesh(
        arrange_devices(devices, fsdp), (DATA, FSDP), axis_types=(AxisType.Auto,) * 2
    )


def _check_division(devices: Sequence[Device], fsdp: int) -> None:
    sizes = [len(part) for part in group_by_slice(devices)]
    common = math.gcd(*sizes)
    if common % fsdp == 0:
        return
    whose = "devices"
    if len(sizes) > 1:
        whose += f" of each of the {len(sizes)} slices (TPU slices or hosts)"
    counts = " and ".join(str(size) for size in sorted(set(sizes)))
    fitting = [str(n) for n in range(1, common + 1) if common % n == 0]
    raise ValueError(
        f"training.fsdp is {fsdp}, which does not divide the {counts} {whose}; set it "
        f"to one of {', '.join(fitting)}"
    )


def split_dim(shape: tuple[int, ...], parts: int) -> int | None:
    """The longest dimension that `parts` divides, or None."""
    fitting = [d for d, n in enumerate(shape) if n and n % parts == 0]
    return max(fitting, key=lambda d: shape[d], default=None) if parts > 1 else None


def spec_of(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Partition spec of a parameter, or of a moment of one, from its shape alone."""
    dim = split_dim(shape, mesh.size)
    if dim is None:
        return EVERYWHERE
    return PartitionSpec(*[None] * dim, (FSDP, DATA))


def specs_of(tree: Any, mesh: Mesh) -> Any:
    """`spec_of` every array of a pytree."""
    return jax.tree.map(lambda x: spec_of(jnp.shape(x), mesh), tree)


def shardings_of(tree: Any, mesh: Mesh) -> Any:
    """Shardings of every array of a pytree, see `spec_of`."""
    return jax.tree.map(
        lambda x: NamedSharding(mesh, spec_of(jnp.shape(x), mesh)), tree
    )


def check_splittable(params: Any, mesh: Mesh) -> None:
    """Refuses a mesh whose `fsdp` would shard few of the parameters.

    Raises:
      ValueError: more than a tenth of the parameters cannot be split over the devices.
    """
    sizes = {True: 0, False: 0}
    for x in jax.tree.leaves(params):
        sizes[split_dim(x.shape, mesh.size) is not None] += x.size
    whole = sizes[False] / max(sum(sizes.values()), 1)
    if mesh.shape[FSDP] > 1 and whole > 0.1:
        raise ValueError(
            f"training.fsdp is {mesh.shape[FSDP]}, but {whole:.0%} of the parameters "
            f"have no size that is a multiple of the {mesh.size} devices, so they "
            "cannot be shared: use another number of devices, or set it to 1"
        )


def put_state(tree: Any, mesh: Mesh) -> Any:
    """Copies parameters or optimiser state to the mesh, sharded."""
    return distribute(tree, shardings_of(tree, mesh))


def gather_parameters(
    shards: list[Float[Array, "..."]], dims: Sequence[int | None]
) -> list[Float[Array, "..."]]:
    """Gathers parameters that are sharded along `data`, in one all-gather.

    Call it inside `shard_map`. Arrays that are not sharded are marked as varying over
    the whole mesh, so that their gradients stay on their device.

    Args:
      shards: this device's shards, of one dtype.
      dims: the sharded dimension of each; None for those that are not sharded.

    Returns:
      The whole arrays.
    """
    split = [i for i, dim in enumerate(dims) if dim is not None]
    count, out = jax.lax.axis_size(DATA), list(shards)
    if count > 1 and split:
        flat = jax.lax.all_gather(
            _concatenate([shards[i].ravel() for i in split]), DATA
        )
        for i, piece in zip(
            split, _split_like(flat, [shards[i] for i in split]), strict=True
        ):
            out[i] = _merge_parts(piece.reshape(count, *shards[i].shape), dims[i] or 0)
    for i, dim in enumerate(dims):
        if dim is None:
            out[i] = jax.lax.pcast(out[i], (DATA, FSDP), to="varying")
    return out


def scatter_gradients(
    gradients: list[Float[Array, "..."]], dims: Sequence[int | None], sums: T
) -> tuple[list[Float[Array, "..."]], T]:
    """Sums gradients over devices, of which each keeps its shard: one reduce-scatter.

    Call it inside `shard_map`; the shards are those of `gather_parameters`.

    Args:
      gradients: this device's gradients of whole arrays, of one dtype.
      dims: the sharded dimension of each; None for those that are not sharded.
      sums: further values to sum over devices, which share one small all-reduce with
        the gradients that are not sharded.

    Returns:
      The shards of the summed gradients, and the sums.
    """
    split = [i for i, dim in enumerate(dims) if dim is not None]
    count, out = jax.lax.axis_size(DATA), list(gradients)
    if count > 1 and split:
        stacks = [_split_parts(gradients[i], dims[i] or 0, count) for i in split]
        flat = _concatenate([stack.reshape(count, -1) for stack in stacks])
        flat = jax.lax.psum_scatter(flat, DATA, scatter_dimension=0)
        parts = [stack[0] for stack in stacks]
        for i, piece, part in zip(split, _split_like(flat, parts), parts, strict=True):
            out[i] = piece.reshape(part.shape)
    rest = {i: out[i] for i, dim in enumerate(dims) if dim is None}
    rest, sums = jax.lax.psum((rest, sums), (DATA, FSDP))
    return [rest.get(i, x) for i, x in enumerate(out)], sums


def _concatenate(pieces: list[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-1)


def _split_like(flat: Array, like: list[Array]) -> list[Array]:
    """Splits an array along the last axis into pieces of the sizes of `like`."""
    ends = list(itertools.accumulate(x.size for x in like))[:-1]
    return jnp.split(flat, ends, axis=-1)


def _merge_parts(parts: Array, dim: int) -> Array:
    """Concatenates parts [count, *part] along a dimension."""
    shape = list(parts.shape[1:])
    shape[dim] *= parts.shape[0]
    return jnp.moveaxis(parts, 0, dim).reshape(shape)


def _split_parts(x: Array, dim: int, count: int) -> Array:
    """The inverse of `_merge_parts`."""
    shape = (*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])
    return jnp.moveaxis(x.reshape(shape), dim, 0)
