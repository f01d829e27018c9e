"""The interface of every embedding model: callers use it, not the model's class."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.checkpoints.table import Table
from cdejax.models.encoder import Encoder
from cdejax.typing import AnyArray

Kind = Literal["biencoder", "contextual", "baked"]
ContextArrays = tuple[
    Float[AnyArray, "context hidden"], Bool[AnyArray, "context"] | None
]
"""Context vectors, and which of them are attended to (None: all)."""


class EmbeddingModel(nnx.Module):
    """A model that maps token ids to one vector per text.

    There are three kinds: a biencoder; a contextual model, which also reads a context;
    and a baked model, which is a contextual model with a constant context.
    """

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """The model's kind, by which type checkers narrow `kinds.Model`."""

    @property
    @abstractmethod
    def encoders(self) -> dict[str, Encoder]:
        """The encoders by the path of their parameters; the last one reads texts."""

    @property
    def text_encoder(self) -> Encoder:
        """The encoder that reads texts (in a contextual model, the second stage's)."""
        return list(self.encoders.values())[-1]

    @property
    @abstractmethod
    def dim(self) -> int:
        """Size of an embedding, and of a context vector."""

    @property
    def context_size(self) -> int:
        """Maximum number of context vectors; 0 for a model that takes no context."""
        return 0

    @property
    def soft_tokens(self) -> int:
        """Number of learned tokens before every text."""
        return 0

    @property
    def pools_prompts(self) -> bool:
        """Whether a prompt's tokens are pooled; if not, `embed` needs `skip`."""
        return True

    @abstractmethod
    def forward_settings(self) -> list[Any]:
        """Settings of the forward pass beyond `config_dict`, as JSON values."""

    @abstractmethod
    def table(self, *, published: bool = False) -> Table:
        """The model's parameters and the names of their tensors in a checkpoint.

        Args:
          published: use the names of published checkpoints instead of transformers'
            own, if the architecture has both.
        """

    @abstractmethod
    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        lengths: Int[AnyArray, "batch"],
        *,
        context: ContextArrays | None = None,
        skip: Int[AnyArray, ""] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Embeddings of texts in float32, not normalised; all models have this method.

        Args:
          ids: token ids of right-padded rows.
          lengths: number of tokens of each row.
          context: context of a contextual model, which uses null vectors without one;
            other models ignore it.
          skip: number of tokens at the start of each text that are not pooled, for
            models that do not pool prompts.
        """
