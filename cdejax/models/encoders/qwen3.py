"""Qwen3 (Yang et al. 2025), the decoder that Qwen3-Embedding is based on."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from cdejax.models.attention import project, rotary_at
from cdejax.models.encoder import Encoder
from cdejax.models.kernels.attention import attention
from cdejax.models.kernels.elementwise import swiglu
from cdejax.models.kernels.padding import ALL, Padding, Rows, join_front
from cdejax.models.layers import (
    Linear,
    RMSNorm,
    Rotary,
    normal,
    rotary_table,
    rotate,
)
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class Qwen3Config:
    """Sizes of a Qwen3, under transformers' names; defaults: Qwen3-Embedding-0.6B.

    `is_causal` is not a field of transformers' Qwen3Config, but is written to and read
    from `config.json` here. transformers 5 looks it up in any configuration when it
    builds masks, so its Qwen3Model is bidirectional as well (tested with 5.24, `eager`
    and `sdpa`). A version that does not know the key silently computes causal
    attention: compare the embedding of one text with ours before serving a
    bidirectional export with it.
    """

    vocab_size: int = 151669
    hidden_size: int = 1024
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    intermediate_size: int = 3072
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    attention_bias: bool = False
    rope_theta: float = 1_000_000.0
    is_causal: bool = True
    """Whether tokens attend only to earlier tokens; if so, use last-token pooling."""


class Qwen3Attention(nnx.Module):
    """Grouped-query attention with an RMS norm on the queries and keys of each head."""

    def __init__(self, config: Qwen3Config, rngs: nnx.Rngs):
        hidden, size = config.hidden_size, config.head_dim
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        if self.heads % self.groups:
            raise ValueError(
                f"num_attention_heads {self.heads} is no multiple of "
                f"num_key_value_heads {self.groups}"
            )
        init, bias = normal(config.initializer_range), config.attention_bias
        out = (self.heads + 2 * self.groups) * size
        self.qkv = Linear(hidden, out, rngs, bias=bias, kernel_init=init)
        self.out = Linear(self.heads * size, hidden, rngs, bias=bias, kernel_init=init)
        self.q_norm = RMSNorm(size, config.rms_norm_eps)
        self.k_norm = RMSNorm(size, config.rms_norm_eps)
        self.causal = config.is_causal

    def __call__(
        self,
        x: Float[Array, "batch length hidden"] | Rows,
        *,
        padding: Padding,
        rotary: Rotary,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Attention output of the tokens at `outputs`, causal if configured."""
        head_dim = self.out.kernel.shape[0] // self.heads
        q, k, v = project(self.qkv, x, self.heads, head_dim, outputs)
        read = attention(
            rotate(self.q_norm(q), rotary_at(rotary, outputs)),
            rotate(self.k_norm(k), rotary),
            v,
            **padding._asdict(),
            causal=self.causal,
            queries=outputs,
        )
        return self.out(read.reshape(*read.shape[:2], -1))


class Qwen3Layer(nnx.Module):
    """Attention and SwiGLU, each preceded by an RMS norm and with a residual."""

    def __init__(self, config: Qwen3Config, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        init, eps = normal(config.initializer_range), config.rms_norm_eps
        self.attention_norm = RMSNorm(hidden, eps)
        self.attention = Qwen3Attention(config, rngs)
        self.mlp_norm = RMSNorm(hidden, eps)
        self.up = Linear(hidden, inner, rngs, bias=False, kernel_init=init)
        self.gate = Linear(hidden, inner, rngs, bias=False, kernel_init=init)
        self.down = Linear(inner, hidden, rngs, bias=False, kernel_init=init)

    def __call__(
        self,
        x: Float[Array, "batch length hidden"] | Rows,
        *,
        padding: Padding,
        shared: Rotary,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Applies the layer."""
        normed = jax.tree.map(self.attention_norm, x)
        read = self.attention(normed, padding=padding, rotary=shared, outputs=outputs)
        x = join_front(x)[:, outputs] + read
        normed = self.mlp_norm(x)
        return x + self.down(swiglu(self.gate(normed), self.up(normed)))


class Qwen3(Encoder):
    """Qwen3 without its language-model head, causal or bidirectional as configured."""

    config: Qwen3Config
    rotary = True

    def __init__(
        self,
        config: Qwen3Config,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        self.layers = nnx.List(
            [Qwen3Layer(config, rngs) for _ in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def after_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The final norm."""
        return self.norm(x)

    def layer_inputs(self, positions: Int[AnyArray, "*batch length"]) -> Rotary:
        """Rotary cosines and sines over all head dimensions, not interleaved."""
        return rotary_table(positions, self.head_dim, self.config.rope_theta)
