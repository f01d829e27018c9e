"""The second stage (M2) of the contextual encoder of CDE (Morris and Rush 2024).

It reads context vectors as tokens before each text: [context][soft tokens][text].
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.base import EmbeddingModel
from cdejax.models.checkpoints.registry import encoder_table
from cdejax.models.checkpoints.table import Entry, Table, head, inside
from cdejax.models.encoder import Encoder, check_length
from cdejax.models.layers import Head
from cdejax.models.pooling import Pooling, pool, text_positions, token_mask
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class ContextualConfig:
    """Settings of a contextual model besides those of its two encoders.

    An export records them in its `config.json`.
    """

    context_size: int = 512
    """Number of context documents, C. Soft tokens have positions from C on, followed
    by the text."""
    soft_tokens: int = 8
    """Number of learned tokens between context and text."""
    pooling: Pooling = "mean"
    """Pooling of both stages; the second stage pools its text only."""
    first_stage_residual: bool = False
    """Whether the first stage's MLP adds its input."""
    output_residual: bool = True
    """Whether the output projection adds its input (CDE since 2025-01)."""
    sequence_dropout: float = 0.0
    """Probability, in training, of replacing a context vector by the null vector."""
    context_rotary: Literal["none", "sequence"] = "none"
    """Positions of context vectors: all 0 (`none`), or 0, 1, … (`sequence`), which
    makes embeddings depend on their order."""
    token_type_readd: bool = False
    """Whether the token-type embedding is added once more to every position: twice to
    text, once to context and soft tokens (v1's published code)."""
    text_norm_twice: bool = False
    """Whether the embedding norm is applied to the text twice (v2)."""
    pool_instruction_end_id: int | None = None
    """Id of the token that ends a prefix: text up to and including its first occurrence
    is not pooled (v2)."""
    null_embedding: bool = True
    """Whether there is a null vector; checkpoints trained without dropout lack it."""


class SecondStage(EmbeddingModel):
    """An encoder that reads context vectors and soft tokens before each text.

    The default forward pass is the paper's. Context vectors are not rotated (all are at
    position 0), so their order does not matter; the token-type embedding is added to
    the text only; the embedding norm is applied to every position; only text is pooled.
    Encoders with learned positions add no position embedding to context and soft
    tokens, and their text starts at position 0. The settings of the configuration
    select the other forward passes of published checkpoints (see `presets`).

    Subclasses set the attributes and implement `soft_prompt`.
    """

    config: ContextualConfig
    backbone: Encoder
    output_projection: Head
    null: nnx.Param | None
    """Vector that replaces absent or dropped context vectors."""

    @property
    def dim(self) -> int:
        """Size of an embedding, and of a context vector."""
        return self.backbone.hidden_size

    @property
    def soft_tokens(self) -> int:
        """Number of learned tokens before every text."""
        return self.config.soft_tokens

    def forward_settings(self) -> list[Any]:
        """Empty: `config_dict` holds all settings."""
        return []

    def table(self, *, published: bool = False) -> Table:
        """The published layout of CDE; `published` is ignored."""
        del published
        prefix = "second_stage_model."
        backbone = encoder_table(self.backbone, published=True)
        null = Entry("null", (f"{prefix}sequence_dropout_null_embedding",))
        return [
            *inside(backbone, "backbone.", f"{prefix}backbone."),
            *head("output_projection", f"{prefix}output_projection"),
            *([] if self.null is None else [null]),
        ]

    @abstractmethod
    def soft_prompt(self) -> Float[Array, "soft hidden"]:
        """The soft tokens."""

    def second_stage(
        self,
        ids: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"] | None = None,
        context: Float[AnyArray, "*batch context hidden"] | None = None,
        context_mask: Bool[AnyArray, "*batch context"] | None = None,
        *,
        lengths: Int[AnyArray, "batch"] | None = None,
        dropped: Bool[AnyArray, "batch context"] | None = None,
    ) -> Float[Array, "batch hidden"]:
        """Embeddings of texts (queries or documents) given a context.

        Args:
          ids: token ids of the texts.
          mask: which tokens are real; the side of the padding does not matter.
          context: vectors of the first stage, shared by all texts or one set per text.
            If there are fewer than C, the missing positions are not attended to. None
            or an empty set means C null vectors.
          context_mask: which context vectors are attended to; a masked vector is the
            same as an absent one.
          lengths: instead of `mask`, the lengths of right-padded rows (the fast path).
          dropped: for each text, the context vectors replaced by the null vector (the
            caller draws the sequence dropout, with one random key per row).

        Returns:
          Embeddings in float32, not normalised.

        Raises:
          ValueError: there are more than C context vectors, their size is not the
            hidden size, all of them are masked for some text, or a null vector is
            needed and the model has none.
        """
        batch, length = ids.shape
        check_length(length, self.backbone)
        front = self._front(context, batch, dropped)
        before = front.shape[-2]
        size = before - self.config.soft_tokens
        text = text_positions(length, mask)
        hidden = self.backbone.encode(
            self._typed(self._text(ids, text)),
            front=self._typed(front),
            positions=self._positions(size, text),
            outputs=slice(before, None),
            **self._padding((batch, size), mask, lengths, context_mask, length),
        )
        real = token_mask((batch, length), mask, lengths)
        if self.config.pool_instruction_end_id is not None:
            real = after_instruction(ids, real, self.config.pool_instruction_end_id)
        return self.output_projection(pool(hidden, real, self.config.pooling))

    def _typed(
        self, embeddings: Float[Array, "*batch length hidden"]
    ) -> Float[Array, "*batch length hidden"]:
        """Embeddings in the backbone's dtype, plus the token type if it is re-added."""
        dtype = self.backbone.dtype
        embeddings = embeddings.astype(dtype)
        if not self.config.token_type_readd:
            return embeddings
        row = self.backbone.token_type[0]  # type: ignore[attr-defined]
        return (embeddings + row).astype(dtype)

    def _text(
        self, ids: Int[AnyArray, "batch length"], positions: Int[AnyArray, "*b length"]
    ) -> Float[Array, "batch length hidden"]:
        """Token embeddings of the text, before the norm that all positions get."""
        embedded = self.backbone.embed(ids, positions)
        return (
            self.backbone.before_layers(embedded)
            if self.config.text_norm_twice
            else embedded
        )

    def _front(
        self,
        context: Float[AnyArray, "*batch context hidden"] | None,
        batch: int,
        dropped: Bool[AnyArray, "batch context"] | None,
    ) -> Float[Array, "*batch front hidden"]:
        """Context and soft tokens: one set if all texts share it, else one per text."""
        vectors = self._context(context, dropped)
        shape = () if vectors.ndim == 2 else (batch,)
        soft = self.config.soft_tokens
        vectors = jnp.broadcast_to(vectors, (*shape, *vectors.shape[-2:]))
        prompt = jnp.broadcast_to(self.soft_prompt(), (*shape, soft, self.dim))
        return jnp.concatenate([vectors, prompt], axis=-2)

    def _context(
        self,
        context: Float[AnyArray, "*batch context hidden"] | None,
        dropped: Bool[AnyArray, "batch context"] | None,
    ) -> Float[Array, "*batch context hidden"]:
        """Context vectors, with null vectors in place of dropped or absent ones."""
        most = self.config.context_size
        if context is None or context.shape[-2] == 0:
            return jnp.broadcast_to(self._null(), (most, self.dim))
        size, dim = context.shape[-2:]
        if size > most or dim != self.dim:
            raise ValueError(
                f"context of {size} vectors of size {dim}, but the model takes at most "
                f"{most} of size {self.dim}: subsample it (`Embedder.context` does)"
            )
        vectors = jnp.asarray(context)
        if dropped is None:
            return vectors
        return jnp.where(jnp.asarray(dropped)[..., None], self._null(), vectors)

    def _null(self) -> Float[Array, "hidden"]:
        if self.null is None:
            raise ValueError(
                "this checkpoint was trained without a null vector, so it cannot do "
                "without a context: give one with at least one vector"
            )
        return self.null[...]

    def _positions(
        self, size: int, text: Int[AnyArray, "*batch length"]
    ) -> Int[Array, "*batch total"]:
        """Positions: context at 0 (or 0, 1, …), soft tokens from C on, then text."""
        start, soft = self.config.context_size, self.config.soft_tokens
        rotated = self.config.context_rotary == "sequence"
        context = jnp.arange(size) if rotated else jnp.zeros(size, int)
        front = jnp.concatenate([context, start + jnp.arange(soft)])
        front = jnp.broadcast_to(front, (*text.shape[:-1], size + soft))
        return jnp.concatenate([front, start + soft + text], axis=-1)

    def _padding(
        self,
        shape: tuple[int, int],
        mask: Bool[AnyArray, "batch length"] | None,
        lengths: Int[AnyArray, "batch"] | None,
        context_mask: Bool[AnyArray, "*batch context"] | None,
        length: int,
    ) -> dict[str, Array]:
        """The whole sequence's lengths if they suffice, otherwise its mask."""
        (batch, size), soft = shape, self.config.soft_tokens
        if context_mask is None and mask is None:
            if lengths is None:
                return {}
            return {"lengths": size + soft + jnp.asarray(lengths)}
        if context_mask is None:
            context_mask = np.ones(size, bool)
        elif isinstance(context_mask, np.ndarray) and not context_mask.any(-1).all():
            raise ValueError(
                "context_mask leaves a text no context at all: pass a context of size "
                "0, which means null vectors"
            )
        front = jnp.broadcast_to(jnp.asarray(context_mask).astype(bool), shape)
        parts = (front, jnp.ones((batch, soft), bool))
        text = token_mask((batch, length), mask, lengths)
        return {"mask": jnp.concatenate([*parts, text], axis=1)}


def after_instruction(
    ids: Int[AnyArray, "batch length"], real: Bool[Array, "batch length"], end: int
) -> Bool[Array, "batch length"]:
    """Mask of the real tokens after the first `end`, not counting a row's first token.

    A row without `end` keeps all its tokens. This is how cde-small-v2's code finds the
    colon of a prefix; in a text without a prefix, it finds any other colon.
    """
    inner = real & (jnp.cumsum(real, axis=1) > 1)
    ends = (jnp.asarray(ids) == end) & inner
    seen = jnp.cumsum(ends, axis=1) > 0
    later = seen & ~(ends & (jnp.cumsum(ends, axis=1) == 1))
    return real & (later | ~ends.any(1, keepdims=True))
