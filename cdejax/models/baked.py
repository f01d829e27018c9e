"""A contextual encoder with one fixed context: it maps texts to embeddings only."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.base import ContextArrays
from cdejax.models.checkpoints.table import Entry, Table
from cdejax.models.contextual import ContextualEncoder
from cdejax.models.encoder import Encoder
from cdejax.models.second_stage import SecondStage
from cdejax.typing import AnyArray


class BakedEncoder(SecondStage):
    """The second stage of a contextual encoder with a constant context.

    The soft tokens are constants as well, since they depend on weights only. Neither
    the first stage nor the soft tokens' projection is kept, which halves the size.
    Embeddings are those of the contextual encoder with the same context.

    Args:
      model: the contextual encoder; parameters that are kept are shared, not copied.
      context: vectors of its first stage, at most C; if empty, null vectors are used.

    Raises:
      ValueError: the context is empty and the model has no null vector.
    """

    def __init__(
        self, model: ContextualEncoder, context: Float[AnyArray, "context hidden"]
    ):
        if not context.shape[0] and model.null is None:
            raise ValueError("without a null vector a context needs at least one text")
        self.config = model.config
        self.backbone = model.backbone
        self.output_projection = model.output_projection
        self.null = model.null
        self.soft = nnx.Param(model.soft_prompt())
        self.context = nnx.Param(jnp.asarray(context, jnp.float32))

    @property
    def kind(self) -> Literal["baked"]:
        """Always `baked`."""
        return "baked"

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The encoder of the second stage."""
        return {"backbone": self.backbone}

    def soft_prompt(self) -> Float[Array, "soft hidden"]:
        """The soft tokens."""
        return self.soft[...]

    def table(self, *, published: bool = False) -> Table:
        """The second stage in the published layout of CDE, plus the two constants."""
        prefix = "second_stage_model."
        constants = {"soft": "soft_prompt", "context": "context"}
        return [
            *super().table(published=published),
            *(Entry(path, (prefix + name,)) for path, name in constants.items()),
        ]

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        lengths: Int[AnyArray, "batch"],
        *,
        context: ContextArrays | None = None,
        skip: Int[AnyArray, ""] | None = None,
    ) -> Float[Array, "batch hidden"]:
        """Embeddings of right-padded rows; `context` and `skip` are ignored."""
        del context, skip
        return self(ids, lengths=lengths)

    def __call__(
        self,
        ids: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"] | None = None,
        *,
        lengths: Int[AnyArray, "batch"] | None = None,
    ) -> Float[Array, "batch hidden"]:
        """Embeddings in float32, not normalised; arguments as in `second_stage`."""
        return self.second_stage(ids, mask, self.context[...], lengths=lengths)
