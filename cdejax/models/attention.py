"""Self-attention layer: projections and rotary positions around an attention kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from cdejax.models.kernels.attention import attention
from cdejax.models.kernels.padding import ALL, Padding, Rows, join_front
from cdejax.models.layers import Initializer, Linear, Rotary, rotate


class SelfAttention(nnx.Module):
    """Multi-head self-attention with one fused projection (query, key, value)."""

    def __init__(
        self,
        features: int,
        heads: int,
        rngs: nnx.Rngs,
        *,
        bias: bool,
        init: Initializer,
        head_dim: int | None = None,
        scale: float | None = None,
    ):
        inner = features if head_dim is None else heads * head_dim
        self.qkv = Linear(features, 3 * inner, rngs, bias=bias, kernel_init=init)
        self.out = Linear(inner, features, rngs, bias=bias, kernel_init=init)
        self.heads = heads
        self.scale = scale

    def __call__(
        self,
        x: Float[Array, "batch length dim"] | Rows,
        padding: Padding,
        *,
        rotary: Rotary | None = None,
        score_bias: Float[Array, "*batch heads length length"] | None = None,
        visible: Bool[Array, "*batch length length"] | None = None,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs dim"]:
        """Attention output of the tokens at `outputs`.

        Args:
          x: hidden states.
          padding: which tokens may be attended to.
          rotary: rotary tables for queries and keys.
          score_bias: added to the attention scores of each head.
          visible: which keys each query may attend to (default: all real ones).
          outputs: positions of the queries.
        """
        head_dim = self.out.kernel.shape[0] // self.heads
        q, k, v = project(self.qkv, x, self.heads, head_dim, outputs)
        if rotary is not None:
            q, k = rotate(q, rotary_at(rotary, outputs)), rotate(k, rotary)
        read = attention(
            q,
            k,
            v,
            **padding._asdict(),
            bias=None if score_bias is None else score_bias[..., outputs, :],
            visible=None if visible is None else visible[..., outputs, :],
            scale=self.scale,
            queries=outputs,
        )
        return self.out(read.reshape(*read.shape[:2], -1))


def project(
    qkv: Linear,
    x: Float[Array, "batch length dim"] | Rows,
    heads: int,
    head_dim: int,
    outputs: slice,
) -> tuple[
    Float[Array, "batch outputs heads head_dim"],
    Float[Array, "batch length kv_heads head_dim"],
    Float[Array, "batch length kv_heads head_dim"],
]:
    """Projects the tokens at `outputs` to queries and all tokens to keys and values.

    It is one matrix product if `outputs` is all positions; otherwise two, each with
    only the columns it needs.
    """
    split = heads * head_dim
    if outputs == ALL:
        ends = split, (split + qkv.kernel.shape[1]) // 2
        parts = jnp.split(join_front(jax.tree.map(qkv, x)), ends, axis=-1)
    else:
        keys = jax.tree.map(lambda part: qkv(part, slice(split, None)), x)
        q = qkv(join_front(x)[:, outputs], slice(split))
        parts = [q, *jnp.split(join_front(keys), 2, axis=-1)]
    q, k, v = (part.reshape(*part.shape[:2], -1, head_dim) for part in parts)
    return q, k, v


def rotary_at(rotary: Rotary, outputs: slice) -> Rotary:
    """The rows of rotary tables at `outputs`."""
    cos, sin = rotary
    return cos[..., outputs, :], sin[..., outputs, :]
