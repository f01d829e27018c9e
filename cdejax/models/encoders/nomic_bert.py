"""NomicBERT (Nussbaum et al. 2024), CDE's backbone: rotary positions and SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from cdejax.models.attention import SelfAttention
from cdejax.models.encoder import Encoder
from cdejax.models.kernels.elementwise import swiglu
from cdejax.models.kernels.padding import ALL, Padding, Rows, join_front
from cdejax.models.layers import LayerNorm, Linear, Rotary, normal, rotary_table
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class NomicBertConfig:
    """Sizes of a NomicBERT, under transformers' names; defaults: nomic-bert-2048."""

    vocab_size: int = 30528
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 2048
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int = 0
    rotary_base: float = 1000.0


class NomicBertLayer(nnx.Module):
    """Attention and SwiGLU without biases, each followed by a residual and a norm."""

    def __init__(self, config: NomicBertConfig, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        init, eps = normal(config.initializer_range), config.layer_norm_eps
        self.attention = SelfAttention(
            hidden, config.num_attention_heads, rngs, bias=False, init=init
        )
        self.attention_norm = LayerNorm(hidden, eps)
        self.up = Linear(hidden, inner, rngs, bias=False, kernel_init=init)
        self.gate = Linear(hidden, inner, rngs, bias=False, kernel_init=init)
        self.down = Linear(inner, hidden, rngs, bias=False, kernel_init=init)
        self.mlp_norm = LayerNorm(hidden, eps)

    def __call__(
        self,
        x: Float[Array, "batch length hidden"] | Rows,
        *,
        padding: Padding,
        shared: Rotary,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Applies the layer."""
        read = self.attention(x, padding, rotary=shared, outputs=outputs)
        x = self.attention_norm(join_front(x)[:, outputs], read)
        gated = swiglu(self.gate(x), self.up(x))
        return self.mlp_norm(x, self.down(gated))


class NomicBert(Encoder):
    """NomicBERT without its masked-language-model head."""

    config: NomicBertConfig
    rotary = True

    def __init__(
        self,
        config: NomicBertConfig,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        shape = (config.type_vocab_size, config.hidden_size)
        self.token_type = nnx.Param(
            normal(config.initializer_range)(rngs.params(), shape)
        )
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layers = nnx.List(
            [NomicBertLayer(config, rngs) for _ in range(config.num_hidden_layers)]
        )

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Sum of word and token type 0 embeddings, before the norm."""
        del positions
        return (self._word_embeddings(ids) + self.token_type[0]).astype(self.dtype)

    def before_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The embedding norm."""
        return self.norm(x)

    def layer_inputs(self, positions: Int[AnyArray, "*batch length"]) -> Rotary:
        """Rotary cosines and sines over all head dimensions, not interleaved."""
        return rotary_table(positions, self.head_dim, self.config.rotary_base)
