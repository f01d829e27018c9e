"""Norms, biases and activations that save only their inputs for the backward pass.

They take about as much of a step's time as its matrix products, since they are bound by
memory bandwidth. Autodiff would save their float32 intermediates as well, which about
doubles the saved activations per token of BERT-base in bfloat16. All except `add_bias`
are computed in float32 and rounded once. They support reverse-mode differentiation
only: JAX refuses `jax.jvp` here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cdejax.models.kernels.triton_norm import triton_add_norm, triton_takes
from cdejax.runtime.platforms import has_triton
from cdejax.runtime.varying import vary_like


def add_bias(
    x: Float[Array, "*rows dim"], bias: Float[Array, "dim"]
) -> Float[Array, "*rows dim"]:
    """`x + bias` in the dtype of `x`; gradients are summed over rows in float32.

    Autodiff would sum them in the dtype of `x`. In bfloat16, such a sum has only two
    digits, and stops growing after a few hundred summands of the same sign.
    """
    return _biased(x, vary_like(bias, x))


@jax.custom_vjp
def _biased(
    x: Float[Array, "*rows dim"], bias: Float[Array, "dim"]
) -> Float[Array, "*rows dim"]:
    return x + bias.astype(x.dtype)


def _biased_forward(
    x: Float[Array, "*rows dim"], bias: Float[Array, "dim"]
) -> tuple[Float[Array, "*rows dim"], Float[Array, "0"]]:
    return _biased(x, bias), bias[:0]


def _biased_backward(
    kind: Float[Array, "0"], cotangent: Float[Array, "*rows dim"]
) -> tuple[Float[Array, "*rows dim"], Float[Array, "dim"]]:
    rows = tuple(range(cotangent.ndim - 1))
    # The barrier makes XLA sum the rounded values instead of a float32 copy of them.
    cotangent = jax.lax.optimization_barrier(cotangent)
    return cotangent, _at_least_float32(cotangent).sum(rows).astype(kind.dtype)


_biased.defvjp(_biased_forward, _biased_backward)


def layer_norm(
    x: Float[Array, "*rows dim"],
    scale: Float[Array, "dim"],
    bias: Float[Array, "dim"] | None,
    eps: float,
) -> Float[Array, "*rows dim"]:
    """Layer normalisation of the last axis (arXiv 1607.06450), in the dtype of `x`.

    Scale and bias must have the same dtype.
    """
    bias = None if bias is None else vary_like(bias, x)
    return _norm(x, vary_like(scale, x), bias, eps, True)


def add_layer_norm(
    x: Float[Array, "*rows dim"],
    added: Float[Array, "*rows dim"],
    scale: Float[Array, "dim"],
    bias: Float[Array, "dim"] | None,
    eps: float,
) -> Float[Array, "*rows dim"]:
    """Layer normalisation of `x + added`: a residual followed by a norm.

    On NVIDIA GPUs under `jax.shard_map`, a Triton kernel is used if it supports the
    inputs. Scale and bias must have the same dtype.
    """
    if bias is None or not (has_triton() and triton_takes(x, added)):
        return layer_norm(x + added, scale, bias, eps)
    rows, more = (part.reshape(-1, x.shape[-1]) for part in (x, added))
    y: Array = triton_add_norm(rows, more, vary_like(scale, x), vary_like(bias, x), eps)
    return y.reshape(x.shape)


def rms_norm(
    x: Float[Array, "*rows dim"], scale: Float[Array, "dim"], eps: float
) -> Float[Array, "*rows dim"]:
    """RMS normalisation of the last axis (arXiv 1910.07467), in the dtype of `x`."""
    return _norm(x, vary_like(scale, x), None, eps, False)


class _Saved(NamedTuple):
    """Values saved for the backward pass of a norm."""

    x: Float[Array, "*rows dim"]
    scale: Float[Array, "dim"]
    mean: Float[Array, "*rows 1"] | None
    inverse: Float[Array, "*rows 1"]
    """Reciprocal of the standard deviation (or root mean square)."""
    biased: tuple[()] | None
    """None without a bias; its values are not needed for gradients."""

    def normed(self) -> Float[Array, "*rows dim"]:
        """The rows before scale and bias, in float32."""
        wide = _at_least_float32(self.x)
        return (wide if self.mean is None else wide - self.mean) * self.inverse


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _norm(
    x: Float[Array, "*rows dim"],
    scale: Float[Array, "dim"],
    bias: Float[Array, "dim"] | None,
    eps: float,
    centred: bool,
) -> Float[Array, "*rows dim"]:
    return _norm_forward(x, scale, bias, eps, centred)[0]


def _norm_forward(
    x: Float[Array, "*rows dim"],
    scale: Float[Array, "dim"],
    bias: Float[Array, "dim"] | None,
    eps: float,
    centred: bool,
) -> tuple[Float[Array, "*rows dim"], _Saved]:
    wide = _at_least_float32(x)
    mean = wide.mean(-1, keepdims=True) if centred else None
    away = wide if mean is None else wide - mean
    inverse = jax.lax.rsqrt(jnp.square(away).mean(-1, keepdims=True) + eps)
    saved = _Saved(x, scale, mean, inverse, None if bias is None else ())
    y = saved.normed() * scale
    return (y if bias is None else y + bias).astype(x.dtype), saved


def _norm_backward(
    eps: float,
    centred: bool,
    saved: _Saved,
    cotangent: Float[Array, "*rows dim"],
) -> tuple[Float[Array, "*rows dim"], Float[Array, "dim"], Float[Array, "dim"] | None]:
    """Gradients of a norm.

    With n the normalised row and g the cotangent times the scale, the gradient of the
    row is (g - mean(g) - n mean(g n)) / deviation, without mean(g) if not centred.

    The barriers enforce three passes over two arrays in the dtype of `x`: means,
    gradient, sums of columns. XLA would fuse more, but write and read float32 copies of
    both.
    """
    cotangent = jax.lax.optimization_barrier(cotangent)
    normed, wide = saved.normed(), _at_least_float32(cotangent)
    along = (wide * saved.scale * normed).mean(-1, keepdims=True)
    level = (wide * saved.scale).mean(-1, keepdims=True) if centred else None
    rows = tuple(range(normed.ndim - 1))
    kind = saved.scale.dtype
    of_scale = (wide * normed).sum(rows).astype(kind)
    of_bias = None if saved.biased is None else wide.sum(rows).astype(kind)

    again = jax.lax.optimization_barrier((saved, cotangent, along, level))
    saved, cotangent, along, level = again
    g = _at_least_float32(cotangent) * saved.scale
    g = g if level is None else g - level
    gradient = saved.inverse * (g - saved.normed() * along)
    return gradient.astype(saved.x.dtype), of_scale, of_bias


_norm.defvjp(_norm_forward, _norm_backward)


def _differentiate_from_inputs(wide: Callable[..., Array]) -> Callable[..., Array]:
    """Makes an elementwise function save only its inputs for the backward pass."""

    @jax.custom_vjp
    def narrow(*inputs: Array) -> Array:
        return wide(*map(_at_least_float32, inputs)).astype(inputs[0].dtype)

    def forward(*inputs: Array) -> tuple[Array, tuple[Array, ...]]:
        return narrow(*inputs), inputs

    def backward(inputs: tuple[Array, ...], cotangent: Array) -> tuple[Array, ...]:
        _, pull = jax.vjp(wide, *map(_at_least_float32, inputs))
        found = pull(_at_least_float32(cotangent))
        return tuple(f.astype(x.dtype) for f, x in zip(found, inputs, strict=True))

    narrow.defvjp(forward, backward)
    return functools.wraps(wide)(narrow)


@_differentiate_from_inputs
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The exact (erf) GELU (arXiv 1606.08415)."""
    return _gelu(x)


@_differentiate_from_inputs
def geglu(
    gate: Float[Array, "*shape"], up: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`gelu(gate) * up` (arXiv 2002.05202)."""
    return _gelu(gate) * up


@_differentiate_from_inputs
def tanh_geglu(
    gate: Float[Array, "*shape"], up: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`gelu(gate) * up` with GELU's tanh approximation (transformers' gelu_new)."""
    # 1 + tanh(u) is computed as 2 sigmoid(2u): XLA's tanh saturates just below 1, and
    # the derivative would multiply that error by gate cubed.
    slope = math.sqrt(8 / math.pi)
    return gate * jax.nn.sigmoid(slope * (gate + 0.044715 * gate**3)) * up


@_differentiate_from_inputs
def swiglu(
    gate: Float[Array, "*shape"], up: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """`silu(gate) * up` (arXiv 2002.05202)."""
    return jax.nn.silu(gate) * up


def _gelu(x: Array) -> Array:
    return x * _normal_cdf(x)


_TAIL = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26."""


@jax.custom_jvp
def _normal_cdf(x: Array) -> Array:
    """CDF of the standard normal distribution, to the last digit or two of float32.

    On a GPU, XLA's erf takes longer than moving its argument through memory, and makes
    GELU's largest error larger. This shares an exponential with the derivative.
    """
    if x.dtype == jnp.float64:
        return 0.5 * jax.lax.erfc(-x * math.sqrt(0.5))
    scaled = 1 + 0.3275911 * math.sqrt(0.5) * jnp.abs(x)
    t = jax.lax.rsqrt(scaled * scaled)  # a division takes a GPU longer
    series = functools.reduce(lambda total, factor: total * t + factor, _TAIL[::-1])
    tail = 0.5 * series * t * jnp.exp(-0.5 * x * x)
    return jnp.where(x < 0, tail, 1 - tail)


@_normal_cdf.defjvp
def _normal_density(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    density = math.sqrt(0.5 / math.pi) * jnp.exp(-0.5 * x * x)
    return _normal_cdf(x), density * tangent


def _at_least_float32(x: Array) -> Array:
    """`x` in float32, or unchanged if it is float64."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
