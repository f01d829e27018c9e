"""How parameters, optimiser state and batches lie on the devices.

The mesh has two axes. The rows of a batch are split over both. Parameters and optimiser
state are split over both, too, each array along one of its dimensions, so that an
optimiser's step touches every number once. Along `data` the parameters are brought
together once a step and their gradients are summed and split once (ZeRO, Rajbhandari et
al. 2020, arXiv 1910.02054). Along `fsdp`, which a model needs that does not fit one
device, that is done anew for every layer of every chunk, so no device ever holds more
than a layer.
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
"""How a batch's rows lie on the mesh."""
EVERYWHERE = PartitionSpec()
T = TypeVar("T")


def make_mesh(devices: Sequence[Device] | None = None, fsdp: int = 1) -> Mesh:
    """A mesh of the given devices (default: all), for any number of hosts and slices.

    Along `fsdp` stand neighbours within a slice (a TPU slice, a GPU host); `data` runs
    through a slice, then through the next.

    Raises:
      ValueError: the devices of a slice are no multiple of `fsdp`.
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
    """The longest dimension that so many devices can share, or None."""
    fitting = [d for d, n in enumerate(shape) if n and n % parts == 0]
    return max(fitting, key=lambda d: shape[d], default=None) if parts > 1 else None


def spec_of(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """How a parameter, or a moment of one, lies on the mesh: by its shape alone."""
    dim = split_dim(shape, mesh.size)
    if dim is None:
        return EVERYWHERE
    return PartitionSpec(*[None] * dim, (FSDP, DATA))


def specs_of(tree: Any, mesh: Mesh) -> Any:
    """`spec_of` every array of a pytree."""
    return jax.tree.map(lambda x: spec_of(jnp.shape(x), mesh), tree)


def shardings_of(tree: Any, mesh: Mesh) -> Any:
    """The same as shardings."""
    return jax.tree.map(
        lambda x: NamedSharding(mesh, spec_of(jnp.shape(x), mesh)), tree
    )


def check_splittable(params: Any, mesh: Mesh) -> None:
    """Refuses a mesh whose `fsdp` would share little.

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
    """A copy of a pytree of parameters or optimiser state, split over the mesh."""
    return distribute(tree, shardings_of(tree, mesh))


def gather_parameters(
    shards: list[Float[Array, "..."]], dims: Sequence[int | None]
) -> list[Float[Array, "..."]]:
    """Arrays of which each device along `data` holds a part: one all-gather.

    Inside `shard_map`. An array that was not split is marked as varying over the whole
    mesh, so that its gradient stays on its device.

    Args:
      shards: the parts, of one dtype.
      dims: the dimension along which each is split; None for one that is not.
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
    """Sums gradients over the devices, each keeping its part: one reduce-scatter.

    Inside `shard_map`; what `together` undoes. Arrays that are not split and `sums`
    (numbers of each device to be added up) share one small all-reduce.
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
    """What was joined, along the last axis."""
    ends = list(itertools.accumulate(x.size for x in like))[:-1]
    return jnp.split(flat, ends, axis=-1)


def _merge_parts(parts: Array, dim: int) -> Array:
    """[count, *part] as one array, parts end to end along a dimension."""
    shape = list(parts.shape[1:])
    shape[dim] *= parts.shape[0]
    return jnp.moveaxis(parts, 0, dim).reshape(shape)


def _split_parts(x: Array, dim: int, count: int) -> Array:
    """The inverse of `_merge`."""
    shape = (*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])
    return jnp.moveaxis(x.reshape(shape), dim, 0)
