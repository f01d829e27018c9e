"""BERT (Devlin et al. 2018), with the semantics of transformers' BertModel."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from cdejax.models.attention import SelfAttention
from cdejax.models.encoder import Encoder, check_positions
from cdejax.models.kernels.elementwise import gelu
from cdejax.models.kernels.padding import ALL, Padding, Rows, join_front
from cdejax.models.layers import LayerNorm, Linear, normal
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT, under transformers' names; the defaults are BERT-base."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int = 0

    @property
    def longest(self) -> int:
        """Maximum number of tokens: one per learned position."""
        return self.max_position_embeddings


class BertLayer(nnx.Module):
    """Attention and a GELU MLP, each followed by a residual and a layer norm."""

    def __init__(self, config: BertConfig, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        init, eps = normal(config.initializer_range), config.layer_norm_eps
        self.attention = SelfAttention(
            hidden, config.num_attention_heads, rngs, bias=True, init=init
        )
        self.attention_norm = LayerNorm(hidden, eps)
        self.up = Linear(hidden, inner, rngs, kernel_init=init)
        self.down = Linear(inner, hidden, rngs, kernel_init=init)
        self.mlp_norm = LayerNorm(hidden, eps)

    def __call__(
        self,
        x: Float[Array, "batch length hidden"] | Rows,
        *,
        padding: Padding,
        shared: Float[Array, "*batch heads length length"] | None = None,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Applies the layer; `shared` is a bias on attention scores, as in MPNet."""
        read = self.attention(x, padding, score_bias=shared, outputs=outputs)
        x = self.attention_norm(join_front(x)[:, outputs], read)
        return self.mlp_norm(x, self.down(gelu(self.up(x))))


class Bert(Encoder):
    """BERT without its pooler: learned absolute positions, exact GELU, post-norm.

    As in transformers, positions that are not given are 0, 1, … from the left edge,
    including padding; the embedding models pass positions counted from each row's first
    real token.
    """

    config: BertConfig

    def __init__(
        self,
        config: BertConfig,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        init, hidden = normal(config.initializer_range), config.hidden_size
        self.token_type = nnx.Param(
            init(rngs.params(), (config.type_vocab_size, hidden))
        )
        self.norm = LayerNorm(hidden, config.layer_norm_eps)
        self.position = nnx.Param(
            init(rngs.params(), (config.max_position_embeddings, hidden))
        )
        self.layers = nnx.List(
            [BertLayer(config, rngs) for _ in range(config.num_hidden_layers)]
        )

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Sum of word, token type 0 and position embeddings, before the norm.

        Raises:
          ValueError: positions beyond the learned ones, or ids outside the vocabulary.
            NumPy arrays are checked; traced values out of range yield NaN.
        """
        check_positions(ids, positions, self)
        where = jnp.arange(ids.shape[1]) if positions is None else positions
        position = jnp.take(self.position[...], jnp.asarray(where), axis=0)
        tokens = self._word_embeddings(ids) + self.token_type[0]
        return (tokens + position).astype(self.dtype)

    def before_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The embedding norm."""
        return self.norm(x)
