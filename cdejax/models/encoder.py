"""What all encoders share: tokens to embeddings, embeddings to hidden states."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cdejax.models.attention import compact, fused_kernel
from cdejax.models.layers import normal
from cdejax.typing import AnyArray

E = TypeVar("E", bound="Encoder")


class Encoder(nnx.Module):
    """A transformer over token ids.

    Subclasses set `layers` and say what comes before and after them and what positions
    mean. Each layer is called as `layer(x, mask=, lengths=, shared=)` with what
    `shared` made of the positions. `dtype` is that of the activations and may be
    assigned at any time, as may `remat` (recompute every layer's activations in the
    backward pass: less memory, a third more work); parameters are float32.
    """

    config: Any
    layers: nnx.List
    fused: ClassVar[bool] = True
    """Whether its attention needs no bias or window, so that fused kernels apply."""

    def __init__(
        self,
        config: Any,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        heads, hidden = config.num_attention_heads, config.hidden_size
        if hidden % heads and not hasattr(config, "head_dim"):
            raise ValueError(
                f"hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            )
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"dtype {jnp.dtype(dtype)}: activations need floats, such as float32"
            )
        init = normal(config.initializer_range)
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.remat = remat
        self.word = nnx.Param(init(rngs.params(), (config.vocab_size, hidden)))

    @property
    def hidden_size(self) -> int:
        """Size of token embeddings and hidden states."""
        return self.config.hidden_size

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        default = self.config.hidden_size // self.config.num_attention_heads
        return getattr(self.config, "head_dim", default)

    @property
    def longest(self) -> int | None:
        """Tokens at most, where positions are learned; None for any number."""
        return getattr(self.config, "longest", None)

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
        """Token embeddings before the embedding norm, in `dtype`.

        Positions (0 is the first of a text) count only for encoders that learned them.

        Raises:
          ValueError: NumPy ids outside the vocabulary (traced ones give NaN), or more
            tokens than learned positions.
        """
        del positions
        return self._words(ids).astype(self.dtype)

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
          positions: where tokens stand, for encoders that rotate, bias or limit
            attention by distance (default: 0, 1, …).
        """
        if mask is not None and lengths is not None:
            raise ValueError("give an encoder a mask or lengths, not both")
        x = self.before(jnp.asarray(embeddings).astype(self.dtype))
        where = np.arange(x.shape[1]) if positions is None else positions
        keep = None if mask is None else jnp.asarray(mask).astype(bool)
        count = None if lengths is None else jnp.asarray(lengths).astype(jnp.int32)
        fused = self.fused and fused_kernel(self.dtype, self.head_dim)
        if keep is None or not fused:
            return self._run(x, keep, count, where)
        order, inverse = compact(keep)
        x = jnp.take_along_axis(x, order[..., None], axis=1)
        where = jnp.take_along_axis(jnp.broadcast_to(where, order.shape), order, axis=1)
        x = self._run(x, None, keep.sum(1, dtype=jnp.int32), where)
        return jnp.take_along_axis(x, inverse[..., None], axis=1)

    def before(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """What is done to embeddings before the first layer."""
        return x

    def after(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """What is done to the last layer's output."""
        return x

    def shared(self, positions: Int[AnyArray, "*batch length"]) -> Any:
        """What all layers need of the positions: rotary tables, a bias, or nothing.

        They are NumPy's where they are known before the call is compiled.
        """
        del positions

    def _words(
        self, ids: Int[AnyArray, "batch length"]
    ) -> Float[Array, "batch length hidden"]:
        """Rows of the word embeddings, float32."""
        if isinstance(ids, np.ndarray) and ids.size:
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"token ids run from {low} to {high}, but the vocabulary has "
                    f"{self.config.vocab_size} rows: use the encoder's own tokenizer"
                )
        return jnp.take(self.word[...], jnp.asarray(ids), axis=0)

    def _run(
        self,
        x: Float[Array, "batch length hidden"],
        mask: Bool[Array, "batch length"] | None,
        lengths: Int[Array, "batch"] | None,
        positions: Int[AnyArray, "*batch length"],
    ) -> Float[Array, "batch length hidden"]:
        shared = self.shared(positions)
        for layer in self.layers:
            step = jax.checkpoint(layer) if self.remat else layer  # type: ignore[attr-defined]
            x = step(x, mask=mask, lengths=lengths, shared=shared)
        return self.after(x)


def check_length(length: int, encoder: Encoder) -> None:
    """ValueError for rows with more tokens than the encoder has learned positions."""
    most = encoder.longest
    if most is not None and length > most:
        raise ValueError(
            f"rows of {length} tokens, but this {type(encoder).__name__} has {most} "
            "positions: lower max_length"
        )


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
