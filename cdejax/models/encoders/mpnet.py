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
    """transformers counts positions from here, whatever config.json says."""
    relative_attention_num_buckets: ClassVar[int] = 32
    """Likewise."""

    @property
    def longest(self) -> int:
        """Tokens at most: positions up to the padding token's row are not theirs."""
        return self.max_position_embeddings - self.pad_token_id - 1


class MPNet(DistilBert):
    """Word and position embeddings, BERT's layers, and a bias by distance on scores.

    One table of biases serves all layers. Absolute positions are RoBERTa's: counted
    over ids that are not the padding token, unless given.
    """

    config: MPNetConfig
    # cuDNN's kernel is handed no bias, so that attention here is always XLA's.
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

        Positions that are given are those of a text, from 0 on.

        Raises:
          ValueError: NumPy positions (or none) that were not learned (traced ones give
            NaN), or NumPy ids outside the vocabulary.
        """
        check_positions(ids, positions, self)
        return super().embed(
            ids, position_rows(ids, positions, self.config.pad_token_id)
        )

    def layer_inputs(
        self, positions: Int[Array, "*batch length"]
    ) -> Float[Array, "*batch heads length length"]:
        """The bias of each head on the score of every pair of positions."""
        return bucket_bias(self.relative[...], positions)
