"""Arrays on the devices of all processes, and back."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cdejax.runtime.mesh import replicated_sharding
from cdejax.runtime.processes import processes

T = TypeVar("T")


def replicate(tree: T, mesh: Mesh) -> T:
    """Replicates arrays, equal on all processes, on all devices of a mesh.

    Args:
      tree: pytree of arrays or random keys.
      mesh: mesh of all processes' devices.
    """
    return distribute(tree, jax.tree.map(lambda _: replicated_sharding(mesh), tree))


def distribute(tree: T, shardings: Any) -> T:
    """Copies arrays, equal on all processes, into sharded global arrays.

    One array at a time is copied, and each device receives only its shard.

    Args:
      tree: pytree of arrays or random keys.
      shardings: pytree of shardings with the same structure.
    """
    return jax.tree.map(_distribute_array, tree, shardings)


def _distribute_array(x: Any, sharding: Any) -> jax.Array:
    if processes() == 1:
        return jax.device_put(x, sharding, may_alias=False)
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        data, impl = (
            _distribute_array(jax.random.key_data(x), sharding),
            jax.random.key_impl(x),
        )
        return jax.random.wrap_key_data(data, impl=impl)
    host = np.asarray(x)
    part = lambda index: host[index]  # noqa: E731
    return jax.make_array_from_callback(host.shape, sharding, part)


def whole_arrays(tree: Any) -> Any:
    """Gathers global arrays into arrays of this process; all processes call this.

    A single process gets the tree back unchanged.
    """
    if processes() == 1:
        return tree

    def everywhere(x: jax.Array) -> NamedSharding:
        assert isinstance(x.sharding, NamedSharding)
        return NamedSharding(x.sharding.mesh, PartitionSpec())

    # One program, while nothing else runs: processes that run several programs at once
    # can deadlock, each waiting for the others in a different one.
    gather = jax.jit(_identity, out_shardings=jax.tree.map(everywhere, tree))
    whole = jax.block_until_ready(gather(jax.block_until_ready(tree)))
    return jax.tree.map(lambda x: x.addressable_data(0), whole)


def _identity(x: T) -> T:
    return x
