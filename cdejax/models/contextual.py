"""The two-stage contextual document encoder of CDE (Morris and Rush 2024).

The first stage (M1) embeds documents of the corpus. The second stage (M2) reads their
embeddings as tokens before each text: [context][soft tokens][text].
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.base import ContextArrays
from cdejax.models.biencoder import BiEncoder
from cdejax.models.checkpoints.registry import encoder_table
from cdejax.models.checkpoints.table import Table, head, inside
from cdejax.models.encoder import Encoder, copy_encoder
from cdejax.models.layers import Head, normal
from cdejax.models.pooling import Pooling
from cdejax.models.second_stage import ContextualConfig, SecondStage
from cdejax.typing import AnyArray

_POOLINGS = ("mean", "cls", "last")


class ContextualEncoder(SecondStage):
    """Both stages of CDE (M1 and M2), with separate weights, and their heads.

    Args:
      config: context size and variant of the forward pass.
      first: encoder of the first stage.
      second: encoder of the second stage, of the same hidden size.
      rngs: random number generators that initialise the heads and the null vector.

    Raises:
      ValueError: the hidden sizes differ, the pooling is not one of `mean`, `cls` and
        `last`, `token_type_readd` is set for an encoder without token types, or
        `context_size` or `soft_tokens` is less than 1.
    """

    def __init__(
        self,
        config: ContextualConfig,
        first: Encoder,
        second: Encoder,
        rngs: nnx.Rngs,
    ):
        size = second.hidden_size
        if first.hidden_size != size:
            raise ValueError(
                f"the stages' hidden sizes differ: {first.hidden_size} and {size}"
            )
        if config.pooling not in _POOLINGS:
            raise ValueError(
                f"pooling {config.pooling!r} is not one of {_POOLINGS}, which "
                "contextual encoders know"
            )
        if config.token_type_readd and not hasattr(second, "token_type"):
            raise ValueError(
                f"token_type_readd: a {type(second).__name__} has no token types"
            )
        if config.context_size < 1 or config.soft_tokens < 1:
            raise ValueError(f"context_size and soft_tokens start at 1: {config}")
        self.config = config
        self.first = BiEncoder(
            first,
            config.pooling,
            "mlp",
            residual=config.first_stage_residual,
            rngs=rngs,
        )
        self.backbone = second
        relu, soft = jax.nn.relu, config.soft_tokens * size
        self.prompt_projection = Head(size, soft, relu, rngs)
        self.output_projection = Head(
            size, size, relu, rngs, residual=config.output_residual
        )
        null = normal(0.01)(rngs.params(), (size,))
        self.null = nnx.Param(null) if config.null_embedding else None

    @classmethod
    def from_encoder(
        cls,
        encoder: Encoder,
        rngs: nnx.Rngs,
        *,
        context_size: int = 512,
        soft_tokens: int = 8,
        pooling: Pooling = "mean",
        layers: int | None = None,
        first_stage_layers: int | None = None,
        sequence_dropout: float = 0.0,
    ) -> ContextualEncoder:
        """Initialises both stages with independent copies of a trained encoder.

        The MLP and the output projection get a residual connection and a last layer of
        zeros: before the first training step, both return the pooled hidden states.

        Args:
          encoder: the trained encoder.
          rngs: random number generators that initialise the heads and the null vector.
          context_size: number of context documents, C.
          soft_tokens: number of learned tokens between context and text.
          pooling: pooling of both stages.
          layers: number of layers of the second stage (default: all).
          first_stage_layers: number of layers of the first stage (default: all).
          sequence_dropout: probability, in training, that a context vector is replaced
            by the null vector.

        Raises:
          ValueError: as for the class, or the encoder has too few layers.
        """
        config = ContextualConfig(
            context_size=context_size,
            soft_tokens=soft_tokens,
            pooling=pooling,
            first_stage_residual=True,
            output_residual=True,
            sequence_dropout=sequence_dropout,
        )
        first = copy_encoder(encoder, first_stage_layers)
        model = cls(config, first, copy_encoder(encoder, layers), rngs)
        assert isinstance(model.first.head, Head)
        model.first.head.make_identity()
        model.output_projection.make_identity()
        return model

    @property
    def kind(self) -> Literal["contextual"]:
        """Always `contextual`."""
        return "contextual"

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The encoders of the first and of the second stage."""
        return {"first.encoder": self.first.encoder, "backbone": self.backbone}

    @property
    def context_size(self) -> int:
        """Maximum number of context vectors, C."""
        return self.config.context_size

    def table(self, *, published: bool = False) -> Table:
        """The published layout of CDE; `published` is ignored."""
        first, second = "first_stage_model.", "second_stage_model."
        embedder = encoder_table(self.first.encoder, published=True)
        return [
            *inside(embedder, "first.encoder.", f"{first}embedder."),
            *head("first.head", f"{first}mlp"),
            *head("prompt_projection", f"{second}prompt_projection"),
            *super().table(published=published),
        ]

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        lengths: Int[AnyArray, "batch"],
        *,
        context: ContextArrays | None = None,
        skip: Int[AnyArray, ""] | None = None,
    ) -> Float[Array, "batch hidden"]:
        """Second-stage embeddings of right-padded rows.

        `skip` is ignored, since prompts are pooled.
        """
        del skip
        vectors, mask = (None, None) if context is None else context
        return self.second_stage(ids, None, vectors, mask, lengths=lengths)

    def first_stage(
        self,
        ids: Int[AnyArray, "documents length"],
        mask: Bool[AnyArray, "documents length"] | None = None,
        *,
        lengths: Int[AnyArray, "documents"] | None = None,
    ) -> Float[Array, "documents hidden"]:
        """Context vectors of documents, in float32, not normalised."""
        return self.first(ids, mask, lengths=lengths)

    def soft_prompt(self) -> Float[Array, "soft hidden"]:
        """The soft tokens: a learned function of an all-ones vector."""
        tokens = self.prompt_projection(jnp.ones(self.dim))
        return tokens.reshape(self.config.soft_tokens, self.dim)
