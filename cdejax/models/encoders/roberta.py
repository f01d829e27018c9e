"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019).

They have the semantics of transformers' classes. Multilingual E5 and BGE-M3 are
XLM-RoBERTa models.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cdejax.models.encoder import check_positions
from cdejax.models.encoders.bert import Bert, BertConfig
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """Sizes of a RoBERTa, under transformers' names; the defaults are RoBERTa-base."""

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    model_type: str = "roberta"
    """`roberta`, or `xlm-roberta`, which computes the same."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens: one per position after the padding token's row."""
        return self.max_position_embeddings - self.pad_token_id - 1


class Roberta(Bert):
    """BERT with positions that start after the padding token's id.

    As in transformers, positions that are not given are counted over ids that are not
    the padding token, so padding on either side makes no difference.
    """

    config: RobertaConfig

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Sum of word, token type 0 and position embeddings, before the norm.

        Given positions are relative to the text: 0 at its first token.

        Raises:
          ValueError: positions beyond the learned ones, or ids outside the vocabulary.
            NumPy arrays are checked; traced values out of range yield NaN.
        """
        check_positions(ids, positions, self)
        return super().embed(
            ids, position_rows(ids, positions, self.config.pad_token_id)
        )


def position_rows(
    ids: Int[AnyArray, "batch length"],
    positions: Int[AnyArray, "*batch length"] | None,
    pad: int,
) -> Int[Array, "batch length"]:
    """Row of each token in fairseq's table of positions.

    A text's first token has row `pad + 1`. The token `pad` has row `pad` and is not
    counted, even inside a text that contains it literally. Texts packed into one row
    are counted separately.

    Args:
      ids: token ids.
      positions: positions of the tokens in their text, without gaps: 0 before the text
        and at its first token (default: each row is one text).
      pad: id of the padding token.
    """
    is_pad = jnp.asarray(ids) == pad
    index = jnp.arange(is_pad.shape[1])
    if positions is None:
        where, skipped = index, jnp.cumsum(is_pad, axis=1)
    else:
        where = jnp.asarray(positions)
        skipped = jnp.cumsum(is_pad & (where > 0), axis=1)
        start = jnp.broadcast_to(jnp.maximum(index - where, 0), skipped.shape)
        skipped = skipped - jnp.take_along_axis(skipped, start, axis=1)
    return jnp.where(is_pad, pad, where - skipped + pad + 1)
