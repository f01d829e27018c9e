"""Gradient cache: large batches through small chunks, exactly.

Only embeddings survive the forward pass; the backward pass encodes each chunk again
(Gao et al. 2021, arXiv 2101.06983). Here that is a function for `jax.grad` like any
other, so stages compose: a second stage that reads the embeddings of a first one
accumulates their cotangent by itself. How many chunks hold texts is data, not shape:
one compilation serves all steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cdejax.typing import AnyArray

Encode = Callable[["Chunks"], Float[Array, "*texts dim"]]
"""Embeds one chunk: every array of it without its first axis."""


class Chunks(NamedTuple):
    """Rows of one width in chunks; a row holds one text, or several if packed."""

    ids: Int[AnyArray, "chunks rows width"]
    """Token ids."""
    lengths: Int[AnyArray, "chunks rows"] | None = None
    """Real tokens of right-padded rows of one text (1 for rows without a text)."""
    segments: Int[AnyArray, "chunks rows width"] | None = None
    """Instead, for packed rows: number of the token's text in its row from 1 on; 0 for
    padding."""
    rows: Int[AnyArray, "chunks rows *slots"] | None = None
    """Number of each text in the global batch, for random keys of its own; packed rows
    have a slot for each text that they may hold."""
    sides: Int[AnyArray, "chunks rows *slots"] | None = None
    """0 for a query, 1 for a document."""
    count: Int[AnyArray, "*one"] | None = None
    """Chunks that hold texts, at the front; no other is computed. None: all do."""


def encode_cached(
    encode: Encode, groups: Sequence[Chunks], keep: Sequence[int] = ()
) -> Float[Array, "texts dim"]:
    """Encodes texts chunk by chunk; differentiable, at the memory of one chunk.

    Args:
      encode: embeds one chunk (`ids [rows, width]` and so on), giving one vector per
        text, or per row and place in it; what it closes over is differentiated, too.
      groups: the texts, chunks of one width together.
      keep: for each group, chunks at its front whose activations are kept for the
        backward pass instead of being computed again (memory for time); they must hold
        texts, and are encoded as one. Default: none.

    Returns:
      The vectors of all chunks laid end to end; 0 where chunks hold no texts.
    """
    kept = [*keep, *[0] * (len(groups) - len(keep))]
    parts = [_encode_group(encode, *pair) for pair in zip(groups, kept, strict=True)]
    return jnp.concatenate(parts)


def _encode_group(encode: Encode, group: Chunks, keep: int) -> Float[Array, "n dim"]:
    total = group.ids.shape[0]
    count = jnp.int32(total) if group.count is None else jnp.max(group.count)
    chunks = group._replace(count=None)
    parts = []
    if keep:
        # All at once: a loop would copy what it keeps of each chunk into one array.
        join = lambda x: x[:keep].reshape(-1, *x.shape[2:])  # noqa: E731
        parts.append(encode(jax.tree.map(join, chunks)))
    if keep < total:
        rest = jax.tree.map(lambda x: x[keep:], chunks)
        explicit, closed = jax.closure_convert(encode, _chunk(rest, 0))
        parts.append(_encode_again(explicit, closed, rest, count - keep))
    vectors = [part.reshape(-1, part.shape[-1]) for part in parts]
    return jnp.concatenate(vectors)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _encode_again(
    encode: Callable[..., Float[Array, "*texts dim"]],
    closed: Sequence[Array],
    chunks: Chunks,
    count: Int[Array, ""],
) -> Float[Array, "chunks *texts dim"]:
    """Embeds the first `count` chunks; its backward pass embeds them again."""
    example = jax.eval_shape(encode, _chunk(chunks, 0), *closed)
    shape = (chunks.ids.shape[0], *example.shape)
    zero = _zero_of((closed, chunks)).astype(example.dtype)

    def add(index: Array, vectors: Array) -> Array:
        return vectors.at[index].set(encode(_chunk(chunks, index), *closed))

    return jax.lax.fori_loop(0, count, add, jnp.broadcast_to(zero, shape))


def _forward(
    encode: Callable[..., Float[Array, "*texts dim"]],
    closed: Sequence[Array],
    chunks: Chunks,
    count: Int[Array, ""],
) -> tuple[Array, Any]:
    return _encode_again(encode, closed, chunks, count), (closed, chunks, count)


def _backward(
    encode: Callable[..., Float[Array, "*texts dim"]],
    saved: tuple[Sequence[Array], Chunks, Int[Array, ""]],
    cotangent: Float[Array, "chunks *texts dim"],
) -> tuple[Any, None, None]:
    closed, chunks, count = saved

    def add(index: Array, total: Sequence[Array]) -> Sequence[Array]:
        pull = jax.vjp(lambda *c: encode(_chunk(chunks, index), *c), *closed)[1]
        return jax.tree.map(jnp.add, total, list(pull(cotangent[index])))

    zero = [_zeros_like(x) for x in closed]
    return jax.lax.fori_loop(0, count, add, zero), None, None


_encode_again.defvjp(_forward, _backward)


def _chunk(chunks: Chunks, index: int | Array) -> Chunks:
    pick = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False)
    return jax.tree.map(lambda x: pick(jnp.asarray(x), index), chunks)


def _zeros_like(x: Array) -> Array:
    """Zeros that vary over the same mesh axes as `x`."""
    return jnp.where(False, x, jnp.zeros_like(x))


def _zero_of(tree: Any) -> Float[Array, ""]:
    """A zero that varies over all mesh axes that any array of a pytree varies over."""
    firsts = [_zeros_like(jnp.ravel(x)[0]) for x in jax.tree.leaves(tree)]
    return sum((x.astype(jnp.float32) for x in firsts), jnp.float32(0))
