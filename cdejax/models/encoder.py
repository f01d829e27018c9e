"""What all encoders share: tokens to embeddings, embeddings to hidden states."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cdejax.models.attention import compact, fused_kernel
from cdejax.models.layers import LayerNorm, Rotary, normal
from cdejax.typing import AnyArray

E = TypeVar("E", bound="Encoder")


class Encoder(nnx.Module):
    """A post-norm transformer encoder over token ids.

    Subclasses set `config`, add their layers and say what positions mean. `dtype` is
    that of the activations and may be assigned at any time; parameters are float32.
    """

    config: Any
    layers: nnx.List

    def __init__(self, config: Any, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        heads, hidden = config.num_attention_heads, config.hidden_size
        if hidden % heads:
            raise ValueError(
                f"hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            )
        init = normal(config.initializer_range)
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.word = nnx.Param(init(rngs.params(), (config.vocab_size, hidden)))
        self.token_type = nnx.Param(
            init(rngs.params(), (config.type_vocab_size, hidden))
        )
        self.norm = LayerNorm(hidden, config.layer_norm_eps)

    @property
    def hidden_size(self) -> int:
        """Size of token embeddings and hidden states."""
        return self.config.hidden_size

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.config.hidden_size // self.config.num_attention_heads

    def __call__(
        self,
        ids: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"] | None = None,
        *,
        lengths: Int[AnyArray, "batch"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Hidden states of the last layer, in `dtype`; undefined (finite) at padding.

        Args:
          ids: token ids.
          mask: which tokens are real; any padding. Without it and `lengths`: all.
          lengths: instead, the lengths of right-padded rows (the fast path).
        """
        return self.encode(self.embed(ids), mask=mask, lengths=lengths)

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Token embeddings before the embedding norm: word and token type 0.

        Positions count only for encoders with learned positions.

        Raises:
          ValueError: NumPy ids outside the vocabulary (traced ones give NaN).
        """
        del positions
        if isinstance(ids, np.ndarray) and ids.size:
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"token ids run from {low} to {high}, but the vocabulary has "
                    f"{self.config.vocab_size} rows: use the encoder's own tokenizer"
                )
        word = jnp.take(self.word[...], jnp.asarray(ids), axis=0)
        return (word + self.token_type[0]).astype(self.dtype)

    def encode(
        self,
        embeddings: Float[Array, "batch length hidden"],
        *,
        mask: Bool[AnyArray, "batch length"] | None = None,
        lengths: Int[AnyArray, "batch"] | None = None,
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Embedding norm and layers over token (or any other) embeddings.

        Args:
          embeddings: as from `embed`; other vectors may stand among them.
          mask: which positions are real.
          lengths: instead, the lengths of right-padded rows.
          positions: relative positions, for encoders that rotate (default: 0, 1, …).
        """
        if mask is not None and lengths is not None:
            raise ValueError("give an encoder a mask or lengths, not both")
        x = self.norm(jnp.asarray(embeddings).astype(self.dtype))
        where = jnp.arange(x.shape[1]) if positions is None else jnp.asarray(positions)
        keep = None if mask is None else jnp.asarray(mask).astype(bool)
        count = None if lengths is None else jnp.asarray(lengths).astype(jnp.int32)
        if keep is None or not fused_kernel(self.dtype, self.head_dim):
            return self._run(x, keep, count, where)
        order, inverse = compact(keep)
        x = jnp.take_along_axis(x, order[..., None], axis=1)
        where = jnp.take_along_axis(jnp.broadcast_to(where, order.shape), order, axis=1)
        x = self._run(x, None, keep.sum(1, dtype=jnp.int32), where)
        return jnp.take_along_axis(x, inverse[..., None], axis=1)

    def rotary(self, positions: Int[Array, "*batch length"]) -> Rotary | None:
        """Rotary table of the positions; None where the encoder does not rotate."""
        del positions

    def _run(
        self,
        x: Float[Array, "batch length hidden"],
        mask: Bool[Array, "batch length"] | None,
        lengths: Int[Array, "batch"] | None,
        positions: Int[Array, "*batch length"],
    ) -> Float[Array, "batch length hidden"]:
        rotary = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, mask=mask, lengths=lengths, rotary=rotary)
        return x


def copy_encoder(encoder: E, layers: int | None = None) -> E:
    """An independent copy (no shared buffers) of an encoder's first layers.

    Raises:
      ValueError: the encoder has fewer layers than asked for.
    """
    have = encoder.config.num_hidden_layers
    keep = have if layers is None else layers
    if not 1 <= keep <= have:
        raise ValueError(f"layers: {keep} asked for, but the encoder has 1 to {have}")
    graph, state = nnx.split(encoder)
    copy = nnx.merge(graph, jax.tree.map(jnp.copy, state))
    copy.layers = nnx.List(list(copy.layers)[:keep])
    copy.config = dataclasses.replace(encoder.config, num_hidden_layers=keep)
    return copy
