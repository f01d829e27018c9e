"""Base class of all encoders: tokens to embeddings, embeddings to hidden states."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cdejax.models.kernels.attention import fused_kernel
from cdejax.models.kernels.padding import (
    ALL,
    Padding,
    Rows,
    compact,
    join_front,
    total_length,
)
from cdejax.models.layers import normal
from cdejax.typing import AnyArray

E = TypeVar("E", bound="Encoder")


class Encoder(nnx.Module):
    """A transformer over token ids.

    Subclasses set `layers` and override `embed`, `before_layers`, `after_layers` and
    `layer_inputs` as needed. Each layer is called as `layer(x, padding=, shared=,
    outputs=)`, where `shared` is the result of `layer_inputs`. The first layer may
    receive `Rows` as `x`; the last layer must return only the states at `outputs`.
    `dtype` is the dtype of the activations; parameters are float32. `remat` recomputes
    every layer's activations in the backward pass, which saves memory for a third more
    computation. Both can be assigned at any time.
    """

    config: Any
    layers: nnx.List
    fused: ClassVar[bool] = True
    """Whether fused attention kernels apply: there is no bias or window."""
    rotary: ClassVar[bool] = False
    """Whether queries and keys are rotated by their positions."""

    def __init__(
        self,
        config: Any,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        *,
        remat: bool = False,
    ):
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"dtype {jnp.dtype(dtype)}: activations need floats, such as float32"
            )
        init = normal(config.initializer_range)
        self.config = config
        self._check_sizes()
        self.dtype = jnp.dtype(dtype)
        self.remat = remat
        shape = config.vocab_size, config.hidden_size
        self.word = nnx.Param(init(rngs.params(), shape))

    def _check_sizes(self) -> None:
        """Raises ValueError if the sizes in the configuration are inconsistent."""
        heads, hidden = self.config.num_attention_heads, self.config.hidden_size
        if hidden % heads and not hasattr(self.config, "head_dim"):
            raise ValueError(
                f"hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            )
        if self.rotary and self.head_dim % 2:
            raise ValueError(
                f"heads of size {self.head_dim}: rotary positions turn pairs, so that "
                "hidden_size / num_attention_heads (or head_dim) must be even"
            )
        if self.longest is not None and self.longest < 1:
            raise ValueError(
                f"max_position_embeddings {self.config.max_position_embeddings} is too "
                "small: rows up to the padding token's, "
                f"{self.config.pad_token_id}, are no positions of tokens"
            )

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
        """Maximum number of tokens, set by learned positions; None without a limit."""
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
          mask: which tokens are real, for padding on any side (default: all).
          lengths: alternatively, the lengths of right-padded rows (the fast path).
        """
        return self.encode(self.embed(ids), mask=mask, lengths=lengths)

    def embed(
        self,
        ids: Int[AnyArray, "batch length"],
        positions: Int[AnyArray, "*batch length"] | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Token embeddings before the embedding norm, in `dtype`.

        Args:
          ids: token ids.
          positions: positions of the tokens, 0 at the first token of a text (default:
            0, 1, …); only encoders with learned positions use them.

        Raises:
          ValueError: ids are outside the vocabulary, or positions beyond the learned
            ones. NumPy arrays are checked; traced values out of range yield NaN.
        """
        del positions
        return self._word_embeddings(ids).astype(self.dtype)

    def encode(
        self,
        embeddings: Float[Array, "batch length hidden"],
        *,
        mask: Bool[AnyArray, "batch length"] | None = None,
        lengths: Int[AnyArray, "batch"] | None = None,
        segments: Int[AnyArray, "batch length"] | None = None,
        positions: Int[AnyArray, "*batch length"] | None = None,
        front: Float[Array, "*batch front hidden"] | None = None,
        outputs: slice = ALL,
    ) -> Float[Array, "batch outputs hidden"]:
        """Applies the embedding norm and the layers to embeddings of tokens or others.

        Args:
          embeddings: the output of `embed`, or any other vectors.
          mask: which positions are real.
          lengths: alternatively, the lengths of right-padded rows.
          segments: alternatively, ids of the texts packed into each row, which do not
            attend to each other; 0 is padding.
          positions: positions of the tokens, for encoders with rotary embeddings,
            relative biases or local attention (default: 0, 1, …); those of each packed
            text start at 0.
          front: embeddings prepended to each row; they become part of the row. A prefix
            shared by all rows (without a batch axis) is normalised and projected once.
          outputs: the positions whose states are returned, as a slice without a step.
            The last layer computes only these, unless tokens have to be reordered
            because a fused kernel does not take a mask.

        Returns:
          Hidden states of the last layer at `outputs`, in `dtype`.

        Raises:
          ValueError: more than one of mask, lengths and segments is given, or `outputs`
            has a step.
        """
        padding = _padding(mask, lengths, segments)
        x = jnp.asarray(embeddings).astype(self.dtype)
        if front is not None:
            x = _prepend(jnp.asarray(front).astype(self.dtype), x)
        x = jax.tree.map(self.before_layers, x)
        where = np.arange(total_length(x)) if positions is None else positions
        outputs = _full_slice(outputs, total_length(x))
        fused = self.fused and fused_kernel(self.dtype, self.head_dim)
        if padding.mask is None or not fused:
            return self._run(x, padding, where, outputs)
        order, inverse = compact(padding.mask)
        x = jnp.take_along_axis(join_front(x), order[..., None], axis=1)
        where = jnp.take_along_axis(jnp.broadcast_to(where, order.shape), order, axis=1)
        padding = Padding(lengths=padding.mask.sum(1, dtype=jnp.int32))
        x = self._run(x, padding, where, ALL)
        return jnp.take_along_axis(x, inverse[:, outputs, None], axis=1)

    def before_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """Transforms the embeddings before the first layer (default: identity)."""
        return x

    def after_layers(
        self, x: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length hidden"]:
        """Transforms the last layer's output (default: identity)."""
        return x

    def layer_inputs(self, positions: Int[AnyArray, "*batch length"]) -> Any:
        """Computes what all layers share: rotary tables, a score bias, or nothing.

        Args:
          positions: positions of the tokens; a NumPy array if they are known at
            compile time.
        """
        del positions

    def _word_embeddings(
        self, ids: Int[AnyArray, "batch length"]
    ) -> Float[Array, "batch length hidden"]:
        """Looks up word embeddings, float32."""
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
        x: Float[Array, "batch length hidden"] | Rows,
        padding: Padding,
        positions: Int[AnyArray, "*batch length"],
        outputs: slice,
    ) -> Float[Array, "batch outputs hidden"]:
        shared = self.layer_inputs(positions)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            step = functools.partial(layer, outputs=outputs if index == last else ALL)
            step = jax.checkpoint(step) if self.remat else step  # type: ignore[attr-defined]
            x = step(x, padding=padding, shared=shared)
        return _row_major(self.after_layers(join_front(x)))


def _row_major(
    x: Float[Array, "batch length hidden"],
) -> Float[Array, "batch length hidden"]:
    """Constrains `x` to row-major layout.

    Pooling sums over positions. XLA would therefore make positions the minor dimension,
    here and in all layers before, and transpose the operands of every matrix product.
    """
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def _padding(
    mask: Bool[AnyArray, "batch length"] | None,
    lengths: Int[AnyArray, "batch"] | None,
    segments: Int[AnyArray, "batch length"] | None,
) -> Padding:
    padding = Padding(
        None if mask is None else jnp.asarray(mask).astype(bool),
        None if lengths is None else jnp.asarray(lengths).astype(jnp.int32),
        None if segments is None else jnp.asarray(segments).astype(jnp.int32),
    )
    padding.check()
    return padding


def _prepend(
    front: Float[Array, "*batch front hidden"], x: Float[Array, "batch length hidden"]
) -> Float[Array, "batch total hidden"] | Rows:
    if front.ndim == 2:
        return Rows(front[None], x)
    return jnp.concatenate([front, x], axis=1)


def _full_slice(outputs: slice, length: int) -> slice:
    """The slice with both ends set, or `ALL` if it covers all positions."""
    start, stop, step = outputs.indices(length)
    if step != 1:
        raise ValueError(f"outputs {outputs}: only slices without a step are computed")
    return ALL if stop - start == length else slice(start, stop)


def check_length(length: int, encoder: Encoder) -> None:
    """Raises ValueError if rows have more tokens than the encoder has positions."""
    most = encoder.longest
    if most is not None and length > most:
        raise ValueError(
            f"rows of {length} tokens, but this {type(encoder).__name__} has {most} "
            "positions: lower max_length"
        )


def check_positions(
    ids: Int[AnyArray, "batch length"],
    positions: Int[AnyArray, "*batch length"] | None,
    encoder: Encoder,
) -> None:
    """Does the same as `check_length` for NumPy positions (None: 0, 1, …)."""
    if positions is None:
        check_length(ids.shape[1], encoder)
    elif isinstance(positions, np.ndarray) and positions.size:
        check_length(int(positions.max()) + 1, encoder)


def copy_encoder(encoder: E, layers: int | None = None) -> E:
    """Copies an encoder, or its first layers, without sharing buffers.

    Args:
      encoder: the encoder to copy.
      layers: number of layers to keep (default: all).

    Raises:
      ValueError: `layers` is less than 1 or more than the encoder has.
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
