"""A contextual encoder with one context folded in: texts to embeddings, no more."""

from __future__ import annotations

from typing import NoReturn

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.contextual import ContextualEncoder
from cdejax.typing import AnyArray

_NOT_NEEDED = ("first", "prompt_projection")


class BakedEncoder(ContextualEncoder):
    """The second stage whose context is a constant.

    So are the soft tokens, which depend on nothing but weights; neither the first stage
    nor the soft tokens' projection is kept: half the size. Embeddings are those of the
    contextual encoder with the same context.

    Args:
      model: the contextual encoder; parameters that are kept are shared, not copied.
      context: vectors of its first stage, at most C; with none, null vectors are read.

    Raises:
      ValueError: no context, and no null vector either.
    """

    def __init__(
        self, model: ContextualEncoder, context: Float[AnyArray, "context hidden"]
    ):
        for name, part in vars(model).items():
            if not name.startswith("_") and name not in _NOT_NEEDED:
                setattr(self, name, part)
        if not context.shape[0] and model.null is None:
            raise ValueError("without a null vector a context needs at least one text")
        self.soft = nnx.Param(model.soft_prompt())
        self.context = nnx.Param(jnp.asarray(context, jnp.float32))

    def soft_prompt(self) -> Float[Array, "soft hidden"]:
        """The soft tokens."""
        return self.soft[...]

    def first_stage(self, *_: object, **__: object) -> NoReturn:
        """Always raises ValueError."""
        raise ValueError("a baked model has no first stage; use the unbaked one")

    def __call__(
        self,
        ids: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"] | None = None,
        *,
        lengths: Int[AnyArray, "batch"] | None = None,
    ) -> Float[Array, "batch hidden"]:
        """Embeddings in float32, not normalised; arguments as of `second_stage`."""
        return self.second_stage(ids, mask, self.context[...], lengths=lengths)
