"""DistilBERT (Sanh et al. 2019), with the semantics of transformers' class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from cdejax.models.encoder import Encoder, check_positions
from cdejax.models.encoders.bert import BertLayer
from cdejax.models.layers import LayerNorm, normal
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class DistilBertConfig:
    """Sizes of a DistilBERT, under BERT's names; defaults: distilbert-base.

    `config.json` calls them `dim`, `n_layers`, `n_heads` and `hidden_dim`.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    initializer_range: float = 0.02
    pad_token_id: int = 0
    layer_norm_eps: ClassVar[float] = 1e-12
    """Fixed; `config.json` has no key for it."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens: one per learned position."""
        return self.max_position_embeddings


class DistilBert(Encoder):
    """BERT's layers over word and position embeddings: no token types, no pooler."""

    config: Any

    def __init__(
        self,
        config: Any,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        init, hidden = normal(config.initializer_range), config.hidden_size
        self.position = nnx.Param(
            init(rngs.params(), (config.max_position_embeddings, hidden))
        )
        self.norm = LayerNorm(hidden, config.layer_norm_eps)
        self.layers = nnx.List(
            [BertLayer(config, rngs) for _ in range(config.num_hidden_layers)]
        )

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Sum of word and position embeddings, before the norm.

        Raises:
          ValueError: positions beyond the learned ones, or ids outside the vocabulary.
            NumPy arrays are checked; traced values out of range yield NaN.
        """
        check_positions(ids, positions, self)
        where = jnp.arange(ids.shape[1]) if positions is None else positions
        position = jnp.take(self.position[...], jnp.asarray(where), axis=0)
        return (self._word_embeddings(ids) + position).astype(self.dtype)

    def before_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """The embedding norm."""
        return self.norm(x)
