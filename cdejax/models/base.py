"""What every embedding model says of itself: callers ask it instead of its class."""

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
"""Vectors of a context and which of them count (None: all)."""


class EmbeddingModel(nnx.Module):
    """A model that maps token ids to one vector per text.

    There are three kinds: a biencoder; a contextual model, which also reads a context;
    and a baked model, a contextual one whose context is a constant.
    """

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Which of the three kinds it is; type checkers narrow `kinds.Model` by it."""

    @property
    @abstractmethod
    def encoders(self) -> dict[str, Encoder]:
        """Its encoders by the path of their parameters; the last one reads texts."""

    @property
    def text_encoder(self) -> Encoder:
        """The encoder that reads the texts (of a contextual model: the second)."""
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
        """Number of learned tokens in front of every text."""
        return 0

    @property
    def pools_prompts(self) -> bool:
        """Whether a prompt's tokens are pooled; if not, `embed` needs `skip`."""
        return True

    @abstractmethod
    def forward_settings(self) -> list[Any]:
        """What it computes with its parameters beyond `config_dict`, as JSON values."""

    @abstractmethod
    def table(self, *, published: bool = False) -> Table:
        """Parameters and the names of their tensors in a checkpoint.

        Args:
          published: the names of published checkpoints instead of transformers' own,
            where the two differ and the model has both.
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
        """Embeddings of texts, float32, not normalised: the call that all models have.

        Args:
          ids: token ids of right-padded rows.
          lengths: number of tokens of each row.
          context: for a contextual model; without one it reads null vectors. Other
            models do not read it.
          skip: number of tokens at the front of each text that are not pooled, for
            models that do not pool prompts.
        """
