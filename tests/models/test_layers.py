"""Linear maps in a narrow dtype."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cdejax.models.layers import Linear, normal


def test_a_bias_gets_the_sum_over_rows_in_float32():
    """In bfloat16 a sum of thousands stands still, or loses all but two digits."""
    linear = Linear(8, 3, nnx.Rngs(0), kernel_init=normal(0.02))
    graph, params = nnx.split(linear)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(64, 128, 8)), jnp.bfloat16)
    cotangent = jnp.asarray(1 + rng.random((64, 128, 3)), jnp.bfloat16)

    def pull(params):
        return jax.vjp(lambda p: nnx.merge(graph, p)(x), params)[1](cotangent)[0]

    found = jax.jit(pull)(params)["bias"][...]
    expected = np.asarray(cotangent, np.float64).sum((0, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == jnp.float32
