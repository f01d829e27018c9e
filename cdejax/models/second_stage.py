"""The second stage (M2) of the contextual encoder of CDE (Morris and Rush 2024).

It reads context vectors as tokens in front of each text: [context][soft tokens][text].
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
    """What the two encoders do not say; recorded in an export's `config.json`."""

    context_size: int = 512
    """Context documents, C; soft tokens stand at position C, text after them."""
    soft_tokens: int = 8
    """Learned tokens between context and text."""
    pooling: Pooling = "mean"
    """Pooling of both stages; the second pools its text only."""
    first_stage_residual: bool = False
    """The first stage's MLP adds its input."""
    output_residual: bool = True
    """The output projection adds its input (CDE since 2025-01)."""
    sequence_dropout: float = 0.0
    """Probability, in training, that a context vector gave way to the null vector."""
    context_rotary: Literal["none", "sequence"] = "none"
    """Positions of context vectors: all 0, or 0, 1, … so that their order counts."""
    token_type_readd: bool = False
    """Token-type row twice on text, once on all else (v1's published code)."""
    text_norm_twice: bool = False
    """The embedding norm acts on the text twice (v2)."""
    pool_instruction_end_id: int | None = None
    """Text up to and including the first such token stays out of the pool (v2)."""
    null_embedding: bool = True
    """Whether there is a null vector; checkpoints trained without dropout lack it."""


class SecondStage(EmbeddingModel):
    """An encoder that reads context vectors and soft tokens in front of each text.

    Our forward pass is the paper's: context is not rotated (all at position 0), so its
    order does not count; the token-type row is added to the text only; the embedding
    norm acts on every row; only text is pooled. Encoders with learned positions give
    context and soft tokens none, and their text starts at 0. The switches of the
    configuration give the other forward passes of published checkpoints (`presets`).

    Subclasses set the attributes and say where the soft tokens come from.
    """

    config: ContextualConfig
    backbone: Encoder
    output_projection: Head
    null: nnx.Param | None
    """Stands for a context vector that is absent or dropped."""

    @property
    def dim(self) -> int:
        """Size of an embedding, and of a context vector."""
        return self.backbone.hidden_size

    @property
    def soft_tokens(self) -> int:
        """Number of learned tokens in front of every text."""
        return self.config.soft_tokens

    def forward_settings(self) -> list[Any]:
        """Nothing: `config_dict` says it all."""
        return []

    def table(self, *, published: bool = False) -> Table:
        """The published layout of CDE, whatever `published` says."""
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
          mask: which tokens are real; padding on either side gives the same result.
          context: vectors of the first stage, shared by all texts or one set for each.
            Fewer than C leave the missing positions out of attention; none (or None)
            means C null vectors.
          context_mask: which context vectors count; masked equals absent.
          lengths: instead of `mask`, the lengths of right-padded rows (the fast path).
          dropped: context vectors replaced by the null vector, text by text (sequence
            dropout is drawn by the caller, who keeps one key per row).

        Returns:
          Embeddings in float32, not normalised.

        Raises:
          ValueError: more than C context vectors, another hidden size, or a context of
            which everything is masked.
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
        """Embeddings in the backbone's dtype, with the token-type row where it goes."""
        dtype = self.backbone.dtype
        embeddings = embeddings.astype(dtype)
        if not self.config.token_type_readd:
            return embeddings
        row = self.backbone.token_type[0]  # type: ignore[attr-defined]
        return (embeddings + row).astype(dtype)

    def _text(
        self, ids: Int[AnyArray, "batch length"], positions: Int[AnyArray, "*b length"]
    ) -> Float[Array, "batch length hidden"]:
        """Token embeddings of the text, before the norm that all rows get."""
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
        """What stands before the text, for all texts if they share it, or for each."""
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
        """Context vectors, nulls in place of dropped or absent ones."""
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
        """Context at 0 (or 0, 1, …); soft tokens from C on, then the text."""
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
        """The whole sequence's lengths where they suffice, its mask otherwise."""
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
    """The real tokens after the first `end`, which a row's first token is never.

    A row without one keeps all. So does cde-small-v2's code find its prefixes' colon,
    and, in a text without prefix, any colon there is.
    """
    inner = real & (jnp.cumsum(real, axis=1) > 1)
    ends = (jnp.asarray(ids) == end) & inner
    seen = jnp.cumsum(ends, axis=1) > 0
    later = seen & ~(ends & (jnp.cumsum(ends, axis=1) == 1))
    return real & (later | ~ends.any(1, keepdims=True))
