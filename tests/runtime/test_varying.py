"""Arrays are marked as varying over what others vary over, and nothing more."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from cdejax.runtime.varying import vary_like

AXES, AUTO = ("data", "fsdp"), (AxisType.Auto, AxisType.Auto)
MESH = jax.make_mesh((2, 2), AXES, AUTO, devices=jax.devices()[:4])


def axes_of(x):
    return jax.typeof(x).manual_axis_type.varying


def inside(function, check=True):
    """Runs a function of a part of eight numbers, split over `data`."""
    spec = PartitionSpec("data")
    run = jax.shard_map(
        function, mesh=MESH, in_specs=spec, out_specs=spec, check_vma=check
    )
    return jax.jit(run)(jnp.arange(8.0))


def test_an_array_varies_as_the_others_do():
    def local(part):
        zero, other = vary_like((jnp.zeros(()), part), {"like": part})
        assert axes_of(zero) == axes_of(other) == {"data"}
        return jax.lax.fori_loop(0, 3, lambda _, x: x + part, zero + jnp.zeros(4))

    np.testing.assert_array_equal(inside(local), 3 * np.arange(8.0))


def test_nothing_is_marked_where_nothing_varies():
    x = jnp.ones(3)
    assert vary_like(x, x) is x

    def unchecked(part):
        assert vary_like(x, part) is x
        return part

    inside(unchecked, check=False)


def test_a_gradient_is_summed_over_the_devices():
    """Where a parameter that does not vary is marked, as by JAX itself."""

    def gradient(part):
        found = jax.grad(lambda scale: (vary_like(scale, part) * part).sum())(
            jnp.ones(())
        )
        assert not axes_of(found)
        return part + found

    np.testing.assert_array_equal(inside(gradient), np.arange(8.0) + 28)
