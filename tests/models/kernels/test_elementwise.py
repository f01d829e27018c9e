"""Norms and activations against their formulas in float64, values and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from scipy.special import erfc

from cdejax.models import Bert, BertConfig, BiEncoder, NomicBert, NomicBertConfig
from cdejax.models.kernels.elementwise import (
    geglu,
    gelu,
    layer_norm,
    rms_norm,
    swiglu,
    tanh_geglu,
)

EPS = 1e-6


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def plain_layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + EPS) * scale + bias


def plain_rms_norm(x, scale, bias):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + EPS) * scale + 0 * bias


NORMS: dict[str, tuple[Callable, Callable]] = {
    "layer": (lambda x, s, b: layer_norm(x, s, b, EPS), plain_layer_norm),
    "rms": (lambda x, s, b: rms_norm(x, s, EPS) + 0 * b, plain_rms_norm),
}
ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "gelu": (gelu, lambda x, _: jax.nn.gelu(x, approximate=False)),
    "geglu": (geglu, lambda x, y: jax.nn.gelu(x, approximate=False) * y),
    "tanh_geglu": (tanh_geglu, lambda x, y: jax.nn.gelu(x, approximate=True) * y),
    "swiglu": (swiglu, lambda x, y: x * jax.nn.sigmoid(x) * y),
}


def pulled(f: Callable, inputs, cotangent):
    y, pull = jax.vjp(f, *inputs)
    return [y, *pull(cotangent.astype(y.dtype))]


def same(ours: Callable, plain: Callable, inputs, *, tolerance, cotangent):
    """Values and gradients, beside those of the plain formula in float64."""
    found = pulled(ours, inputs, cotangent)
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64)) for x in inputs]
        expected = pulled(plain, wide, jnp.asarray(np.asarray(cotangent, np.float64)))
        expected = [np.asarray(x) for x in expected]
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm(np.asarray(one, np.float64) - other)
        assert error <= tolerance * max(np.linalg.norm(other), 1)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 4e-3)]
)
def test_norm(name, dtype, tolerance):
    # Far from zero, where a variance of squares minus squared mean would cancel.
    x = jnp.asarray(draw(5, 7, 64) + 30 * draw(5, 7, 1, seed=1), dtype)
    scale = jnp.asarray(draw(64, seed=2), jnp.float32)
    bias = jnp.asarray(draw(64, seed=3), jnp.float32)
    cotangent = jnp.asarray(draw(5, 7, 64, seed=4), dtype)
    # The deviation from a mean of 30 keeps about five digits of float32's seven.
    same(
        *NORMS[name],
        (x, scale, bias),
        tolerance=10 * tolerance if dtype == "float32" else tolerance,
        cotangent=cotangent,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_parameters_of_any_dtype_get_gradients_of_theirs(dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(draw(3, 16), "float64" if dtype == "bfloat16" else "float32")
        scale, bias = jnp.ones(16, dtype), jnp.zeros(16, dtype)

        def total(x, scale, bias):
            return layer_norm(x, scale, bias, EPS).sum()

        found = jax.grad(total, argnums=(0, 1, 2))(x, scale, bias)
    assert [g.dtype for g in found] == [x.dtype, dtype, dtype]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 4e-3)]
)
def test_activation(name, dtype, tolerance):
    ours, plain = ACTIVATIONS[name]
    x, y = (jnp.asarray(4 * draw(9, 33, seed=seed), dtype) for seed in (0, 1))
    cotangent = jnp.asarray(draw(9, 33, seed=2), dtype)
    if name == "gelu":
        same(
            ours, lambda x: plain(x, x), (x,), tolerance=tolerance, cotangent=cotangent
        )
    else:
        same(ours, plain, (x, y), tolerance=tolerance, cotangent=cotangent)


def test_gelu_is_exact_to_float32s_last_digits_everywhere():
    """By XLA's erf the largest error of a value is 1e-6."""
    x = np.linspace(-12, 12, 100_001).astype(np.float32)
    wide = x.astype(np.float64)
    cdf = erfc(-wide / np.sqrt(2)) / 2
    density = np.exp(-(wide**2) / 2) / np.sqrt(2 * np.pi)
    value, pull = jax.vjp(gelu, jnp.asarray(x))
    np.testing.assert_allclose(value, wide * cdf, atol=5e-7, rtol=1e-7)
    slope = pull(jnp.ones_like(value))[0]
    np.testing.assert_allclose(slope, cdf + wide * density, atol=4e-7)


@pytest.mark.parametrize("name", ["geglu", "swiglu", "tanh_geglu"])
def test_far_out_the_slope_is_one_or_none(name):
    """Where a saturated function's rounding would be multiplied by its argument."""
    ours, plain = ACTIVATIONS[name]
    x = jnp.asarray([-1e4, -300.0, -40.0, -12.0, 12.0, 40.0, 300.0, 1e4])
    ones = jnp.ones_like(x)
    same(ours, plain, (x, ones), tolerance=1e-6, cotangent=ones)


def test_extreme_inputs_stay_finite():
    x = jnp.asarray([-1e12, -1e4, -40.0, 0.0, 40.0, 1e4, 1e12])
    for name, (ours, _) in ACTIVATIONS.items():
        inputs = (x,) if name == "gelu" else (x, jnp.ones_like(x))
        for found in pulled(ours, inputs, jnp.ones_like(x)):
            assert np.isfinite(found).all(), name


def test_shared_parameters_meet_split_rows():
    """Under shard_map, parameters that every device holds get summed gradients."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.asarray(draw(8, 16), jnp.float32)
    scale, bias = jnp.asarray(draw(2, 16, seed=1), jnp.float32)

    def loss(scale, bias, x):
        return jnp.square(layer_norm(x, scale, bias, EPS)).sum()

    def local(scale, bias, x):
        whole = lambda *a: jax.lax.psum(loss(*a), "data")  # noqa: E731
        return jax.grad(whole, (0, 1))(scale, bias, x)

    split = jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=(P(), P())
    )
    expected = jax.grad(loss, (0, 1))(scale, bias, x)
    for one, other in zip(split(scale, bias, x), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


LAYERS, ROWS, WIDTH, HIDDEN = 6, 4, 8, 64
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "num_attention_heads": 1,
    "num_hidden_layers": LAYERS,
}


@pytest.mark.parametrize(
    ("make", "arrays"),
    [
        (lambda rngs: Bert(BertConfig(**SIZES), rngs, jnp.bfloat16), 16),
        (lambda rngs: NomicBert(NomicBertConfig(**SIZES), rngs, jnp.bfloat16), 20),
    ],
    ids=["bert", "nomic_bert"],
)
def test_backward_pass_keeps_narrow_inputs_only(make, arrays):
    """Arrays of hidden size a layer: 3 + 1 of attention, 2 of each norm, and 4 for
    each inner array of the MLP, of which BERT has two and NomicBERT three."""
    ids = np.ones((ROWS, WIDTH), np.int32)
    graphdef, params = nnx.split(BiEncoder(make(nnx.Rngs(0))))

    def kept(params):
        return jax.vjp(lambda p: nnx.merge(graphdef, p)(ids), params)[1]

    found = jax.tree.leaves(jax.eval_shape(kept, params))
    shape = (ROWS, WIDTH, HIDDEN)
    assert len([x for x in found if x.shape == shape and x.dtype == "float32"]) <= 3
    narrow = [x.size for x in found if x.dtype == "bfloat16" and x.shape[0] == ROWS]
    assert arrays - 1 <= sum(narrow) / (LAYERS * np.prod(shape)) <= arrays + 3
