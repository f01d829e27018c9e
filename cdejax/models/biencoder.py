"""A biencoder: one encoder for queries and documents, pooled, with or without a head.

It is also the first stage (M1) of the contextual encoder.
"""

from __future__ import annotations

from typing import Literal

from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.encoder import Encoder
from cdejax.models.layers import Head, gelu
from cdejax.models.pooling import (
    Pooling,
    check_pooling,
    pool,
    text_positions,
    token_mask,
)
from cdejax.typing import AnyArray


class BiEncoder(nnx.Module):
    """`head(pool(encoder(ids)))`, not normalised.

    Args:
      encoder: the token encoder.
      pooling: how token states become one vector.
      head: `none`, or CDE's `mlp`: Linear, exact GELU, Linear (arXiv 2410.02525).
      residual: the head adds its input to its output.
      rngs: for the head's first weights.
      head_sizes: hidden and output size of the head (default: the encoder's both).
    """

    def __init__(
        self,
        encoder: Encoder,
        pooling: Pooling = "mean",
        head: Literal["none", "mlp"] | None = None,
        *,
        residual: bool = False,
        rngs: nnx.Rngs | None = None,
        head_sizes: tuple[int, int] | None = None,
    ):
        if head not in (None, "none", "mlp"):
            raise ValueError(f"head {head!r} is not one of ('none', 'mlp')")
        self.encoder = encoder
        self.pooling: Pooling = check_pooling(pooling)
        if head != "mlp":
            self.head = None
            return
        if rngs is None:
            raise ValueError("a head needs rngs for its first weights")
        size = encoder.hidden_size
        hidden, out = head_sizes or (size, size)
        self.head = Head(size, out, gelu, rngs, hidden=hidden, residual=residual)

    @classmethod
    def from_encoder(
        cls,
        encoder: Encoder,
        pooling: Pooling = "mean",
        head: Literal["none", "mlp"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> BiEncoder:
        """A biencoder that starts from a trained encoder, whose pooling it returns.

        An `mlp` head gets a residual and a zero last layer: before the first step it
        changes nothing. The encoder is used as it is, not copied.
        """
        model = cls(encoder, pooling, head, residual=head == "mlp", rngs=rngs)
        if model.head is not None:
            model.head.make_identity()
        return model

    @property
    def dim(self) -> int:
        """Size of an embedding."""
        if self.head is None:
            return self.encoder.hidden_size
        return self.head.last.kernel.shape[1]

    def __call__(
        self,
        ids: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"] | None = None,
        *,
        lengths: Int[AnyArray, "batch"] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Embeddings of texts, float32, not normalised.

        Args:
          ids: token ids.
          mask: which tokens are real; padding on either side gives the same result.
          lengths: instead, the lengths of right-padded rows (the fast path).
        """
        length = ids.shape[1]
        positions = text_positions(length, mask)
        hidden = self.encoder.encode(
            self.encoder.embed(ids, positions),
            mask=mask,
            lengths=lengths,
            positions=positions,
        )
        pooled = pool(hidden, token_mask(ids.shape, mask, lengths), self.pooling)
        return pooled if self.head is None else self.head(pooled)
