"""Layers that all encoders share: linear layers, norms, heads, rotary positions.

Parameters are float32. A layer computes in the dtype of its input, so the dtype of the
activations is set in one place, where the encoder embeds its tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Num

from cdejax.models.kernels.elementwise import (
    add_bias,
    add_layer_norm,
    layer_norm,
    rms_norm,
)
from cdejax.typing import AnyArray

Initializer = Callable[[jax.Array, tuple[int, ...]], jax.Array]
Rotary = tuple[jax.Array, jax.Array]
Activation = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def normal(std: float) -> Initializer:
    """Returns an initialiser that draws from N(0, std²)."""
    return lambda key, shape: std * jax.random.normal(key, shape)


def torch_uniform(fan_in: int) -> Initializer:
    """Returns PyTorch's default initialiser of linear layers: U(±1/sqrt(fan_in))."""
    bound = fan_in**-0.5
    return lambda key, shape: jax.random.uniform(
        key, shape, minval=-bound, maxval=bound
    )


class Linear(nnx.Module):
    """`x @ kernel + bias`; kernel [in, out], the transpose of PyTorch's weight."""

    def __init__(
        self,
        features: int,
        out: int,
        rngs: nnx.Rngs,
        *,
        bias: bool = True,
        kernel_init: Initializer,
        bias_init: Initializer | None = None,
    ):
        self.kernel = nnx.Param(kernel_init(rngs.params(), (features, out)))
        init = bias_init or (lambda key, shape: jnp.zeros(shape))
        self.bias = nnx.Param(init(rngs.params(), (out,))) if bias else None

    def __call__(
        self, x: Float[Array, "*rows in"], columns: slice = slice(None)
    ) -> Float[Array, "*rows out"]:
        """Maps the last axis, in the dtype of `x`.

        Args:
          x: input.
          columns: the output features to compute (default: all).
        """
        y = x @ self.kernel[...][:, columns].astype(x.dtype)
        return y if self.bias is None else add_bias(y, self.bias[...][columns])


class LayerNorm(nnx.Module):
    """Layer normalisation of the last axis, with statistics in float32."""

    def __init__(self, features: int, eps: float, *, bias: bool = True):
        self.scale = nnx.Param(jnp.ones(features))
        self.bias = nnx.Param(jnp.zeros(features)) if bias else None
        self.eps = eps

    def __call__(
        self,
        x: Float[Array, "*rows dim"],
        added: Float[Array, "*rows dim"] | None = None,
    ) -> Float[Array, "*rows dim"]:
        """Normalises the last axis of `x`, or of `x + added`, in the dtype of `x`."""
        scale, bias = self.scale[...], None if self.bias is None else self.bias[...]
        if added is None:
            return layer_norm(x, scale, bias, self.eps)
        return add_layer_norm(x, added, scale, bias, self.eps)


class RMSNorm(nnx.Module):
    """RMS normalisation of the last axis in float32 (arXiv 1910.07467)."""

    def __init__(self, features: int, eps: float):
        self.scale = nnx.Param(jnp.ones(features))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Normalises the last axis; the result has the dtype of `x`."""
        return rms_norm(x, self.scale[...], self.eps)


class Head(nnx.Module):
    """`last(activation(first(x)))`, plus `x` if `residual`.

    Weights start with PyTorch's default for linear layers, as in CDE's heads. A
    residual head whose last layer is zero (`make_identity`) returns exactly its input.
    """

    def __init__(
        self,
        features: int,
        out: int,
        activation: Activation,
        rngs: nnx.Rngs,
        *,
        hidden: int | None = None,
        residual: bool = False,
    ):
        if residual and features != out:
            raise ValueError(f"a residual needs equal sizes, not {features} and {out}")
        hidden = hidden or features
        init, last_init = torch_uniform(features), torch_uniform(hidden)
        self.first = Linear(features, hidden, rngs, kernel_init=init, bias_init=init)
        self.last = Linear(
            hidden, out, rngs, kernel_init=last_init, bias_init=last_init
        )
        self.activation = activation
        self.residual = residual

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        """Maps the last axis, in the dtype of `x`."""
        y = self.last(self.activation(self.first(x)))
        return x + y if self.residual else y

    def make_identity(self) -> None:
        """Sets the last layer to zero, so that the head returns its input.

        Raises:
          ValueError: the head has no residual (its output would be 0).
        """
        if not self.residual:
            raise ValueError("a head without a residual cannot start as the identity")
        for param in (self.last.kernel, self.last.bias):
            assert param is not None
            param[...] = jnp.zeros_like(param[...])


def rotary_table(
    positions: Num[AnyArray, "*batch length"], head_dim: int, base: float
) -> tuple[Float[Array, "*batch length half"], Float[Array, "*batch length half"]]:
    """Cosines and sines, in float32, of rotary positions over all of `head_dim`.

    At position 0 they are exactly (1, 0): the token is not rotated.
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angles = positions[..., None].astype(jnp.float32) / base**exponents
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "batch length heads head_dim"], rotary: Rotary
) -> Float[Array, "batch length heads head_dim"]:
    """Applies rotary positions, not interleaved: pairs are (i, i + head_dim / 2)."""
    cos, sin = (table[..., None, :] for table in rotary)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (left * cos - right * sin, right * cos + left * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
