"""MPNet (Song et al. 2020), with the semantics of transformers' MPNetModel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from cdejax.models.encoder import check_positions
from cdejax.models.encoders.distilbert import DistilBert
from cdejax.models.encoders.roberta import position_rows
from cdejax.models.layers import normal
from cdejax.models.relative import bucket_bias
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class MPNetConfig:
    """Sizes of an MPNet, under transformers' names; the defaults are mpnet-base."""

    vocab_size: int = 30527
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 514
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    pad_token_id: ClassVar[int] = 1
    """Fixed: transformers counts positions from here, regardless of config.json."""
    relative_attention_num_buckets: ClassVar[int] = 32
    """Fixed, as well."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens: one per position after the padding token's row."""
        return self.max_position_embeddings - self.pad_token_id - 1


class MPNet(DistilBert):
    """Word and position embeddings, BERT's layers, and a relative position bias.

    All layers share one table of biases on attention scores. Absolute positions are
    those of RoBERTa: if not given, they are counted over ids that are not the padding
    token.
    """

    config: MPNetConfig
    # The fused kernels take no bias, so this attention runs on XLA (or blocked).
    fused = False

    def __init__(
        self,
        config: MPNetConfig,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        super().__init__(config, rngs, dtype, remat=remat)
        shape = (config.relative_attention_num_buckets, config.num_attention_heads)
        init = normal(config.initializer_range)
        self.relative = nnx.Param(init(rngs.params(), shape))

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Sum of word and position embeddings, before the norm.

        Given positions are relative to the text: 0 at its first token.

        Raises:
          ValueError: positions beyond the learned ones, or ids outside the vocabulary.
            NumPy arrays are checked; traced values out of range yield NaN.
        """
        check_positions(ids, positions, self)
        return super().embed(
            ids, position_rows(ids, positions, self.config.pad_token_id)
        )

    def layer_inputs(
        self, positions: Int[Array, "*batch length"]
    ) -> Float[Array, "*batch heads length length"]:
        """The bias of each head for the score of every pair of positions."""
        return bucket_bias(self.relative[...], positions)
