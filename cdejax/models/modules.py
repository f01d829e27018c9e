"""Modules that may follow pooling, in any order: Dense, LayerNorm and Normalize.

Each computes the same as sentence-transformers' module of that name, in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from cdejax.models import layers
from cdejax.models.checkpoints.table import Table, inside, linear, norm
from cdejax.models.kernels.elementwise import gelu
from cdejax.models.layers import Linear, torch_uniform

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "GELU": gelu,
    "ReLU": jax.nn.relu,
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
    "LeakyReLU": jax.nn.leaky_relu,
    "ELU": jax.nn.elu,
    "SELU": jax.nn.selu,
    "ReLU6": jax.nn.relu6,
    "Softplus": jax.nn.softplus,
    "Mish": jax.nn.mish,
}
"""PyTorch's activations with their default settings, by class name."""
_LAYER_NORM_EPS = 1e-5


class Dense(nnx.Module):
    """`activation(x @ kernel + bias)`, optionally with a residual connection.

    Args:
      features: size of the input.
      out: size of the output.
      rngs: random number generators for PyTorch's default initialisation.
      activation: one of `ACTIVATIONS`.
      bias: whether to add a learned bias.
      residual: whether to add the input, linearly projected if the sizes differ.

    Raises:
      ValueError: the activation is unknown.
    """

    def __init__(
        self,
        features: int,
        out: int,
        rngs: nnx.Rngs,
        *,
        activation: str = "Tanh",
        bias: bool = True,
        residual: bool = False,
    ):
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation {activation!r} is not one of {list(ACTIVATIONS)}"
            )
        init = torch_uniform(features)
        self.features, self.out = features, out
        self.activation, self.residual = activation, residual
        self.linear = Linear(
            features, out, rngs, bias=bias, kernel_init=init, bias_init=init
        )
        own = residual and features != out
        self.projection = (
            Linear(features, out, rngs, bias=False, kernel_init=init) if own else None
        )

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        """Maps the last axis, in the dtype of `x`."""
        y = ACTIVATIONS[self.activation](self.linear(x))
        if not self.residual:
            return y
        return y + (x if self.projection is None else self.projection(x))

    def table(self) -> Table:
        """Parameters and sentence-transformers' names."""
        own = linear("linear", "linear", bias=self.linear.bias is not None)
        if self.projection is None:
            return own
        return own + linear("projection", "residual", bias=False)


class LayerNorm(nnx.Module):
    """Layer normalisation with PyTorch's default epsilon.

    Args:
      features: size of input and output.
    """

    def __init__(self, features: int):
        self.features = self.out = features
        self.norm = layers.LayerNorm(features, _LAYER_NORM_EPS)

    def __call__(self, x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Normalises the last axis; the result has the dtype of `x`."""
        return self.norm(x)

    def table(self) -> Table:
        """Parameters and sentence-transformers' names."""
        return norm("norm", "norm")


class Normalize(nnx.Module):
    """L2 normalisation to unit length (a zero vector stays zero).

    Args:
      features: size of input and output.
    """

    def __init__(self, features: int):
        self.features = self.out = features

    def __call__(self, x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Divides the last axis by its L2 norm, or by 1e-12 if that is larger."""
        return unit(x)

    def table(self) -> Table:
        """No parameters."""
        return []


Module = Dense | LayerNorm | Normalize


class Chain(nnx.Module):
    """A sequence of modules.

    Args:
      modules: at least one; each takes the output of the one before it.

    Raises:
      ValueError: a module's input size is not the output size of the one before it.
    """

    def __init__(self, modules: Sequence[Module]):
        for before, after in itertools.pairwise(modules):
            if before.out != after.features:
                raise ValueError(
                    f"{type(after).__name__} takes vectors of size {after.features}, "
                    f"but {type(before).__name__} before it gives {before.out}"
                )
        self.modules = nnx.List(list(modules))

    @property
    def features(self) -> int:
        """Size of the input."""
        return self.modules[0].features

    @property
    def out(self) -> int:
        """Size of the output."""
        return self.modules[-1].out

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        """Applies the modules in order to the last axis."""
        for module in self.modules:
            x = module(x)
        return x

    def table(self) -> Table:
        """Parameters and sentence-transformers' names, prefixed with `modules.N.`."""
        return [
            entry
            for index, module in enumerate(self.modules)
            for entry in inside(
                module.table(), f"modules.{index}.", f"modules.{index}."
            )
        ]


def unit(x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """Vectors divided by their L2 norm (at least 1e-12); gradients are finite at 0."""
    square = (x * x).sum(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))
