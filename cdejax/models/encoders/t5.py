"""T5's encoder (Raffel et al. 2020), which GTR and Sentence-T5 are based on."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from cdejax.models.attention import SelfAttention
from cdejax.models.encoder import Encoder
from cdejax.models.kernels.elementwise import tanh_geglu
from cdejax.models.kernels.padding import ALL, Padding, Rows, join_front
from cdejax.models.layers import Linear, RMSNorm, normal
from cdejax.models.relative import bucket_bias
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class T5Config:
    """Sizes of a T5 encoder; the defaults are t5-small.

    Names are those that most models have in transformers; T5's config.json calls them
    `d_model`, `num_layers`, `num_heads`, `d_ff` and, for `head_dim`, `d_kv`.
    """

    vocab_size: int = 32128
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    head_dim: int = 64
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    """`relu`, or `gated-gelu` as in T5 1.1 (arXiv 2002.05202)."""
    initializer_factor: float = 1.0
    pad_token_id: int = 0

    @property
    def initializer_range(self) -> float:
        """Standard deviation of newly initialised word embeddings."""
        return self.initializer_factor


class T5Layer(nnx.Module):
    """Unscaled attention and an MLP, each with an RMS norm before and a residual."""

    def __init__(self, config: T5Config, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        eps, factor = config.layer_norm_epsilon, config.initializer_factor

        def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return normal(factor * shape[0] ** -0.5)(key, shape)

        self.attention_norm = RMSNorm(hidden, eps)
        self.attention = SelfAttention(
            hidden,
            config.num_attention_heads,
            rngs,
            bias=False,
            init=init,
            head_dim=config.head_dim,
            scale=1.0,
        )
        # Scores are not scaled: queries are initialised smaller instead.
        queries = config.num_attention_heads * config.head_dim
        kernel = self.attention.qkv.kernel
        kernel[...] = kernel[...].at[:, :queries].multiply(config.head_dim**-0.5)
        self.mlp_norm = RMSNorm(hidden, eps)
        gated = config.feed_forward_proj == "gated-gelu"
        self.up = Linear(hidden, inner, rngs, bias=False, kernel_init=init)
        self.gate = (
            Linear(hidden, inner, rngs, bias=False, kernel_init=init) if gated else None
        )
        self.down = Linear(inner, hidden, rngs, bias=False, kernel_init=init)

    def __call__(
        self,
        x: Float[Array, "batch length hidden"] | Rows,
        *,
        padding: Padding,
        shared: Float[Array, "*batch heads length length"],
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Applies the layer; `shared` is the bias on attention scores."""
        normed = jax.tree.map(self.attention_norm, x)
        read = self.attention(normed, padding, score_bias=shared, outputs=outputs)
        x = join_front(x)[:, outputs] + read
        normed = self.mlp_norm(x)
        if self.gate is None:
            return x + self.down(jax.nn.relu(self.up(normed)))
        return x + self.down(tanh_geglu(self.up(normed), self.gate(normed)))


class T5(Encoder):
    """T5's encoder: all layers share one table of relative position biases.

    There are no absolute positions and no embedding norm, but a norm after the last
    layer.
    """

    config: T5Config
    # The fused kernels take no bias, so this attention runs on XLA (or blocked).
    fused = False

    def __init__(
        self,
        config: T5Config,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        shape = (config.relative_attention_num_buckets, config.num_attention_heads)
        init = normal(config.initializer_factor * config.hidden_size**-0.5)
        self.relative = nnx.Param(init(rngs.params(), shape))
        self.layers = nnx.List(
            [T5Layer(config, rngs) for _ in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)

    def after_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The final norm."""
        return self.norm(x)

    def layer_inputs(
        self, positions: Int[AnyArray, "*batch length"]
    ) -> Float[Array, "*batch heads length length"]:
        """The bias of each head for the score of every pair of positions."""
        farthest = self.config.relative_attention_max_distance
        return bucket_bias(self.relative[...], positions, farthest)
