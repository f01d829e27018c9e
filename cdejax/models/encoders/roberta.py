"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019), as transformers'.

Multilingual E5 and BGE-M3 are XLM-RoBERTa.
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
    """Or `xlm-roberta`, which computes the same."""

    @property
    def longest(self) -> int:
        """Tokens at most: positions up to the padding token's row are not theirs."""
        return self.max_position_embeddings - self.pad_token_id - 1


class Roberta(Bert):
    """BERT, but for positions: they start behind the padding token's id.

    As in transformers, positions are counted over ids that are not the padding token,
    unless given: padding by that token on either side changes nothing.
    """

    config: RobertaConfig

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Sum of word, token type 0 and position embeddings, before the norm.

        Positions that are given are those of a text, from 0 on.

        Raises:
          ValueError: NumPy positions (or none) that were not learned (traced ones give
            NaN), or NumPy ids outside the vocabulary.
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
    """Rows of fairseq's position table: `pad + 1` for a text's first token, and so on.

    The token `pad` has row `pad` and is not counted, not even inside a text, where a
    text that spells it out brings it. Each of several texts in a row counts for itself.

    Args:
      ids: token ids.
      positions: where tokens stand in their text, 0 in front of it and at its start,
        from where on they have no gaps; without them, the row of ids is the text.
      pad: the padding token.
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
