"""Gradient cache: exact gradients of large batches, encoded in small chunks.

The forward pass saves only the embeddings; the backward pass encodes each chunk again
(Gao et al. 2021, arXiv 2101.06983). Here this is an ordinary differentiable function,
so stages compose: a second stage that takes the embeddings of a first one accumulates
their cotangents. The number of chunks in use is data, not shape: one compilation serves
all steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from cdejax.runtime.varying import vary_like
from cdejax.typing import AnyArray

Encode = Callable[[Any], Float[Array, "*texts dim"]]
"""Embeds one chunk: rows whose arrays lack the axis of chunks."""


class Chunks(NamedTuple):
    """Chunks of rows of one width."""

    rows: Any
    """The rows of all chunks: a pytree of arrays whose first axis is that of chunks
    (in training `PaddedRows` or `PackedRows`)."""
    count: Int[AnyArray, "devices"]
    """Number of chunks with texts, which come first; only these are computed."""

    @classmethod
    def full(cls, rows: Any) -> Chunks:
        """Chunks all of which hold texts."""
        return cls(rows, np.array([_chunks_of(rows)], np.int32))


def encode_cached(
    encode: Encode, groups: Sequence[Chunks], keep: Sequence[int] = ()
) -> Float[Array, "texts dim"]:
    """Encodes texts chunk by chunk; differentiable with the memory of one chunk.

    Args:
      encode: embeds one chunk (rows of `ids [rows, width]` and so on) to one vector
        per row, or per row and slot; values that it closes over are differentiated as
        well.
      groups: the texts, in groups of chunks of one width.
      keep: for each group, the number of first chunks whose activations are saved for
        the backward pass instead of recomputed (memory for time); these must hold
        texts, and are encoded at once. Default: none.

    Returns:
      The vectors of all chunks, concatenated; 0 for chunks without texts.
    """
    kept = [*keep, *[0] * (len(groups) - len(keep))]
    parts = [_encode_group(encode, *pair) for pair in zip(groups, kept, strict=True)]
    return jnp.concatenate(parts)


def _encode_group(encode: Encode, group: Chunks, keep: int) -> Float[Array, "n dim"]:
    total, rows = _chunks_of(group.rows), group.rows
    count = jnp.max(group.count)
    parts = []
    if keep:
        # All at once: a loop would copy the activations of each chunk into one array.
        join = lambda x: x[:keep].reshape(-1, *x.shape[2:])  # noqa: E731
        parts.append(encode(jax.tree.map(join, rows)))
    if keep < total:
        rest = jax.tree.map(lambda x: x[keep:], rows)
        explicit, closed = jax.closure_convert(encode, _chunk(rest, 0))
        parts.append(_encode_again(explicit, closed, rest, count - keep))
    vectors = [part.reshape(-1, part.shape[-1]) for part in parts]
    return jnp.concatenate(vectors)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _encode_again(
    encode: Callable[..., Float[Array, "*texts dim"]],
    closed: Sequence[Array],
    chunks: Any,
    count: Int[Array, ""],
) -> Float[Array, "chunks *texts dim"]:
    """Embeds the first `count` chunks, and again in the backward pass."""
    example = jax.eval_shape(encode, _chunk(chunks, 0), *closed)
    shape = (_chunks_of(chunks), *example.shape)
    zeros = vary_like(jnp.zeros(shape, example.dtype), (closed, chunks))

    def add(index: Array, vectors: Array) -> Array:
        return vectors.at[index].set(encode(_chunk(chunks, index), *closed))

    return jax.lax.fori_loop(0, count, add, zeros)


def _forward(
    encode: Callable[..., Float[Array, "*texts dim"]],
    closed: Sequence[Array],
    chunks: Any,
    count: Int[Array, ""],
) -> tuple[Array, Any]:
    return _encode_again(encode, closed, chunks, count), (closed, chunks, count)


def _backward(
    encode: Callable[..., Float[Array, "*texts dim"]],
    saved: tuple[Sequence[Array], Any, Int[Array, ""]],
    cotangent: Float[Array, "chunks *texts dim"],
) -> tuple[Any, None, None]:
    closed, chunks, count = saved

    def add(index: Array, total: Sequence[Array]) -> Sequence[Array]:
        pull = jax.vjp(lambda *c: encode(_chunk(chunks, index), *c), *closed)[1]
        return jax.tree.map(jnp.add, total, list(pull(cotangent[index])))

    zero = [vary_like(jnp.zeros_like(x), x) for x in closed]
    return jax.lax.fori_loop(0, count, add, zero), None, None


_encode_again.defvjp(_forward, _backward)


def _chunks_of(rows: Any) -> int:
    """Number of chunks, whether they hold texts or not."""
    return jax.tree.leaves(rows)[0].shape[0]


def _chunk(chunks: Any, index: int | Array) -> Any:
    pick = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False)
    return jax.tree.map(lambda x: pick(jnp.asarray(x), index), chunks)
