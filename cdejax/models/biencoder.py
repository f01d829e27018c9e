"""The biencoder: one encoder for queries and documents, pooling, and an optional head.

It is also the first stage (M1) of the contextual encoder.
"""

from __future__ import annotations

from typing import Any, Literal

from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from cdejax.models.base import ContextArrays, EmbeddingModel
from cdejax.models.checkpoints.registry import encoder_table
from cdejax.models.checkpoints.table import Table, inside
from cdejax.models.checkpoints.table import head as head_table
from cdejax.models.encoder import Encoder, check_length
from cdejax.models.kernels.elementwise import gelu
from cdejax.models.kernels.padding import ALL
from cdejax.models.layers import Head
from cdejax.models.modules import Chain
from cdejax.models.packed import pool_segments, segment_positions
from cdejax.models.pooling import (
    Pooling,
    check_pooling,
    pool,
    pooled_size,
    text_positions,
    token_mask,
)
from cdejax.typing import AnyArray


class BiEncoder(EmbeddingModel):
    """`head(pool(encoder(ids)))`, not normalised.

    The model does not include a final Normalize module of a sentence-transformers
    folder: it does not change cosine similarities, and the losses and `Embedder`
    normalise embeddings themselves.

    Args:
      encoder: the token encoder.
      pooling: how token states become one vector; modes are joined as in `cls+mean`.
      head: `none` (or None); CDE's `mlp`: Linear, exact GELU, Linear (arXiv
        2410.02525); or a `Head` or `Chain` that exists already.
      residual: whether the `mlp` adds its input to its output.
      rngs: random number generators that initialise an `mlp`.
      head_sizes: hidden and output size of an `mlp` (default: the pooled vector's size
        for both).
      include_prompt: whether a prompt's tokens are pooled. If not, callers that put a
        prompt before texts pass its length as `skip`, as `Embedder` does.

    Raises:
      ValueError: the pooling or head is unknown, an `mlp` has no `rngs`, or the head's
        input size is not the pooled vector's.
    """

    def __init__(
        self,
        encoder: Encoder,
        pooling: Pooling = "mean",
        head: Literal["none", "mlp"] | Head | Chain | None = None,
        *,
        residual: bool = False,
        rngs: nnx.Rngs | None = None,
        head_sizes: tuple[int, int] | None = None,
        include_prompt: bool = True,
    ):
        self.encoder = encoder
        self.pooling: Pooling = check_pooling(pooling)
        self.include_prompt = include_prompt
        size = pooled_size(encoder.hidden_size, pooling)
        if head == "mlp":
            if rngs is None:
                raise ValueError("a head needs rngs for its first weights")
            hidden, out = head_sizes or (size, size)
            head = Head(size, out, gelu, rngs, hidden=hidden, residual=residual)
        elif isinstance(head, str):
            if head != "none":
                raise ValueError(f"head {head!r} is not one of ('none', 'mlp')")
            head = None
        self.head = head
        if head is not None and _features(head) != size:
            raise ValueError(
                f"the head takes vectors of size {_features(head)}, but pooling "
                f"{pooling} of this encoder gives {size}"
            )

    @classmethod
    def from_encoder(
        cls,
        encoder: Encoder,
        pooling: Pooling = "mean",
        head: Literal["none", "mlp"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> BiEncoder:
        """Builds a biencoder on a trained encoder; it starts as the pooled encoder.

        An `mlp` head gets a residual connection and a last layer of zeros, so it is the
        identity before the first training step. The encoder is used directly, not
        copied.
        """
        model = cls(encoder, pooling, head, residual=head == "mlp", rngs=rngs)
        if isinstance(model.head, Head):
            model.head.make_identity()
        return model

    @property
    def kind(self) -> Literal["biencoder"]:
        """Always `biencoder`."""
        return "biencoder"

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The only encoder, under `encoder`."""
        return {"encoder": self.encoder}

    @property
    def pools_prompts(self) -> bool:
        """Whether a prompt's tokens are pooled."""
        return self.include_prompt

    @property
    def dim(self) -> int:
        """Size of an embedding."""
        if self.head is None:
            return pooled_size(self.encoder.hidden_size, self.pooling)
        if isinstance(self.head, Chain):
            return self.head.out
        return self.head.last.kernel.shape[1]

    def forward_settings(self) -> list[Any]:
        """The pooling, whether prompts are pooled, and the head's modules."""
        modules = self.head.modules if isinstance(self.head, Chain) else [self.head]
        return [self.pooling, self.include_prompt, [_described(m) for m in modules]]

    def table(self, *, published: bool = False) -> Table:
        """The encoder's tensors without a prefix, the head's as `mlp.` or `modules.N.`.

        See `EmbeddingModel.table`.
        """
        encoder = encoder_table(self.encoder, published=published)
        return inside(encoder, "encoder.", "") + _head_table(self.head)

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        lengths: Int[AnyArray, "batch"],
        *,
        context: ContextArrays | None = None,
        skip: Int[AnyArray, ""] | None = None,
    ) -> Float[Array, "batch dim"]:
        """Embeddings of right-padded rows; `context` is ignored."""
        del context
        return self(ids, lengths=lengths, skip=skip)

    def __call__(
        self,
        ids: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"] | None = None,
        *,
        lengths: Int[AnyArray, "batch"] | None = None,
        skip: Int[AnyArray, "*batch"] | int | None = None,
    ) -> Float[Array, "batch dim"]:
        """Embeddings of texts in float32, not normalised (see the class).

        Args:
          ids: token ids.
          mask: which tokens are real; the side of the padding does not matter.
          lengths: alternatively, the lengths of right-padded rows (the fast path).
          skip: number of real tokens at the start of each text that are not pooled.
        """
        check_length(ids.shape[1], self.encoder)
        positions = text_positions(ids.shape[1], mask)
        real = token_mask(ids.shape, mask, lengths)
        # Without a mask, texts start at the left edge.
        first = self.pooling == "cls" and mask is None and skip is None
        outputs = slice(1) if first else ALL
        hidden = self.encoder.encode(
            self.encoder.embed(ids, positions),
            mask=mask,
            lengths=lengths,
            positions=positions,
            outputs=outputs,
        )
        pooled = pool(hidden, real[:, outputs], self.pooling, skip)
        return pooled if self.head is None else self.head(pooled)

    def packed(
        self,
        ids: Int[AnyArray, "rows width"],
        segments: Int[AnyArray, "rows width"],
        slots: int,
    ) -> Float[Array, "rows slots dim"]:
        """Embeddings of packed texts, equal to those of unpacked texts.

        Args:
          ids: token ids.
          segments: for each token, the number of its text within the row: 1, 2, … from
            the left; 0 for padding.
          slots: maximum number of texts per row; vectors of empty slots are undefined.
        """
        positions = segment_positions(segments)
        hidden = self.encoder.encode(
            self.encoder.embed(ids, positions), segments=segments, positions=positions
        )
        pooled = pool_segments(hidden, segments, slots, self.pooling)
        return pooled if self.head is None else self.head(pooled)


def _features(head: Head | Chain) -> int:
    return head.features if isinstance(head, Chain) else head.first.kernel.shape[0]


def _head_table(found: Head | Chain | None) -> Table:
    """CDE's MLP under its published names; other heads as `modules.N.…`."""
    if isinstance(found, Chain):
        return inside(found.table(), "head.", "")
    return [] if found is None else head_table("head", "mlp")


def _described(module: nnx.Module | None) -> list[Any]:
    """Class, activation and residual of one module of the head, as JSON values."""
    activation = getattr(module, "activation", "")
    name = activation if isinstance(activation, str) else activation.__name__
    return [type(module).__name__, name, getattr(module, "residual", False)]
