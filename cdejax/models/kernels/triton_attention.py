"""Attention of packed rows on NVIDIA GPUs: a Triton kernel, written in Pallas.

cuDNN's kernel takes segments as an additive mask: it reads whole rows and also computes
the gradient of the mask, which is not needed. Here, a block of queries reads only the
blocks of keys that contain its own texts (FlashAttention-2, arXiv 2307.08691, with
blocks skipped). It reads queries, keys and values directly from the output of their
fused projection, and the backward pass writes an array of that layout. Without rotary
positions, nothing is copied in between.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cdejax.models.kernels.padding import Padding
from cdejax.models.kernels.triton import call_triton, result
from cdejax.runtime.platforms import platform

BLOCK = 64
"""Number of positions per block; the width of a row must be a multiple of it."""
_NEVER = -1e30
"""Score of a key of another text: finite, so that differences are not NaN."""
_LOG2_E = math.log2(math.e)
_WARPS = 4
_STAGES = 2, 3
"""Pipeline stages of the forward and of the backward pass. These and the block size are
the fastest on an H200."""


def triton_refuses(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    padding: Padding,
    plain: bool,
    causal: bool,
) -> str | None:
    """Reason why this kernel cannot run, or None.

    `plain` is whether there is neither a bias nor a window.
    """
    if not plain or causal or padding.segments is None:
        return "Triton attention takes segments, without a bias, window or order"
    if q.shape != k.shape or q.dtype != k.dtype:
        return "Triton attention takes as many queries as keys, heads too, of one dtype"
    if platform() == "gpu" and q.dtype.itemsize != 2:
        return "Triton attention takes 16 bits: of more, its products drop digits"
    if padding.segments.shape != q.shape[:2] or not q.size:
        return "Triton attention takes rows of tokens, with a segment for each token"
    if q.shape[1] % BLOCK:
        return f"Triton attention takes rows of a multiple of {BLOCK} positions"
    if q.shape[3] not in (32, 64):  # 128 takes more shared memory than some cards have
        return "Triton attention takes heads of 32 or 64 dimensions"
    return None


def triton_attention(
    q: Float[Array, "batch length heads head_dim"],
    k: Float[Array, "batch length heads head_dim"],
    v: Float[Array, "batch length heads head_dim"],
    segments: Int[Array, "batch length"],
    *,
    scale: float,
) -> Float[Array, "batch length heads head_dim"]:
    """Computes attention of each token to the tokens of its own segment.

    Padding (segment 0) attends to padding. Without a GPU, the slow interpret mode is
    used. XLA removes the concatenation if `q`, `k` and `v` were split from one array,
    and likewise in the backward pass.
    """
    flat = [x.reshape(*x.shape[:2], -1) for x in (q, k, v)]
    qkv = jnp.concatenate(flat, axis=-1).reshape(*q.shape[:2], 3, *q.shape[2:])
    return _packed(qkv, segments, scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _packed(
    qkv: Float[Array, "batch length 3 heads head_dim"],
    segments: Int[Array, "batch length"],
    scale: float,
) -> Float[Array, "batch length heads head_dim"]:
    return _forward(qkv, segments, scale)[0]


class _Saved(NamedTuple):
    """Values saved for the backward pass."""

    qkv: Float[Array, "batch length 3 heads head_dim"]
    segments: Int[Array, "batch length"]
    read: Float[Array, "batch length heads head_dim"]
    total: Float[Array, "batch heads length"]
    """Base-2 logarithm of each query's sum of exponentiated scores."""


def _forward(
    qkv: Float[Array, "batch length 3 heads head_dim"],
    segments: Int[Array, "batch length"],
    scale: float,
) -> tuple[Float[Array, "batch length heads head_dim"], _Saved]:
    from jax.experimental import pallas as pl

    batch, length, _, heads, dim = qkv.shape
    spec, one = pl.BlockSpec, pl.BlockSpec((None, None), lambda i, b, h: (b, i))
    read, total = call_triton(
        functools.partial(_forward_kernel, scale=scale),
        warps=_WARPS,
        stages=_STAGES[0],
        grid=(length // BLOCK, batch, heads),
        in_specs=[
            spec((None, BLOCK, None, None, dim), lambda i, b, h: (b, i, 0, h, 0)),
            spec((None, length, None, None, dim), lambda i, b, h: (b, 0, 1, h, 0)),
            spec((None, length, None, None, dim), lambda i, b, h: (b, 0, 2, h, 0)),
            spec((None, BLOCK), lambda i, b, h: (b, i)),
            spec((None, length), lambda i, b, h: (b, 0)),
            one,
            one,
        ],
        out_specs=[
            spec((None, BLOCK, None, dim), lambda i, b, h: (b, i, h, 0)),
            spec((None, None, BLOCK), lambda i, b, h: (b, h, i)),
        ],
        out_shape=[
            result(qkv, (batch, length, heads, dim), qkv.dtype),
            result(qkv, (batch, heads, length), jnp.float32),
        ],
        name="packed_attention",
    )(qkv, qkv, qkv, segments, segments, *_blocks_met(segments))
    return read, _Saved(qkv, segments, read, total)


def _backward(
    scale: float, saved: _Saved, cotangent: Float[Array, "batch length heads head_dim"]
) -> tuple[Float[Array, "batch length 3 heads head_dim"], None]:
    from jax.experimental import pallas as pl

    qkv, segments, read, total = saved
    batch, length, _, heads, dim = qkv.shape
    wide = (x.astype(jnp.float32) for x in (read, cotangent))
    along = jnp.einsum("blhd,blhd->bhl", *wide)
    spec, one = pl.BlockSpec, pl.BlockSpec((None, None), lambda b, h, i: (b, i))
    row = (None, length, None, None, dim)
    per_query = spec((None, None, length), lambda b, h, i: (b, h, 0))
    gradient = call_triton(
        functools.partial(_backward_kernel, scale=scale),
        warps=_WARPS,
        stages=_STAGES[1],
        grid=(batch, heads, length // BLOCK),
        in_specs=[
            spec(row, lambda b, h, i: (b, 0, 0, h, 0)),
            spec(row, lambda b, h, i: (b, 0, 1, h, 0)),
            spec(row, lambda b, h, i: (b, 0, 2, h, 0)),
            spec((None, length, None, dim), lambda b, h, i: (b, 0, h, 0)),
            spec((None, length), lambda b, h, i: (b, 0)),
            per_query,
            per_query,
            one,
            one,
        ],
        out_specs=spec((None, BLOCK, 3, None, dim), lambda b, h, i: (b, i, 0, h, 0)),
        out_shape=result(qkv, qkv.shape, qkv.dtype),
        name="packed_attention_gradient",
    )(qkv, qkv, qkv, cotangent, segments, total, along, *_blocks_met(segments))
    return gradient, None


_packed.defvjp(_forward, _backward)


def _forward_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    own_ref: Any,
    segments_ref: Any,
    first_ref: Any,
    end_ref: Any,
    read_ref: Any,
    total_ref: Any,
    *,
    scale: float,
) -> None:
    """Computes the attention output of one block of queries."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    q, own = q_ref[...], own_ref[...]
    unit = scale * _LOG2_E

    def body(index: Array, carry: tuple[Array, Array, Array]) -> Any:
        read, highest, total = carry
        at = pl.dslice(index * BLOCK, BLOCK)
        scores = plgpu.dot(q, k_ref[at, :].T) * unit
        scores = jnp.where(own[:, None] == segments_ref[at][None, :], scores, _NEVER)
        higher = jnp.maximum(highest, scores.max(1))
        weights = jnp.exp2(scores - higher[:, None])
        fade = jnp.exp2(highest - higher)
        v = v_ref[at, :]
        read = read * fade[:, None] + plgpu.dot(weights.astype(v.dtype), v)
        return read, higher, total * fade + weights.sum(1)

    nothing = jnp.zeros(q.shape, jnp.float32)
    start = nothing, jnp.full(BLOCK, _NEVER), jnp.zeros(BLOCK, jnp.float32)
    read, highest, total = jax.lax.fori_loop(first_ref[...], end_ref[...], body, start)
    read_ref[...] = (read / total[:, None]).astype(read_ref.dtype)
    total_ref[...] = highest + jnp.log2(total)


def _backward_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    cotangent_ref: Any,
    segments_ref: Any,
    total_ref: Any,
    along_ref: Any,
    first_ref: Any,
    end_ref: Any,
    gradient_ref: Any,
    *,
    scale: float,
) -> None:
    """Computes the gradients of a block's keys and values, then of its queries.

    With weights w and their cotangent c, the gradient of the scores is w (c - along),
    where along is a query's sum of w c, which equals the dot product of its output and
    the output's cotangent.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    here = pl.dslice(pl.program_id(2) * BLOCK, BLOCK)
    first, end = first_ref[...], end_ref[...]
    k, v, own = k_ref[here, :], v_ref[here, :], segments_ref[here]
    unit = scale * _LOG2_E
    nothing = jnp.zeros(k.shape, jnp.float32)

    def of_keys(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        to_k, to_v = carry
        at = pl.dslice(index * BLOCK, BLOCK)
        q, cotangent = q_ref[at, :], cotangent_ref[at, :]
        scores = plgpu.dot(k, q.T)  # keys by queries
        weights = jnp.exp2(scores * unit - total_ref[at][None, :])
        weights = jnp.where(own[:, None] == segments_ref[at][None, :], weights, 0)
        to_v = to_v + plgpu.dot(weights.astype(q.dtype), cotangent)
        of_scores = weights * (plgpu.dot(v, cotangent.T) - along_ref[at][None, :])
        return to_k + plgpu.dot(of_scores.astype(q.dtype), q), to_v

    to_k, to_v = jax.lax.fori_loop(first, end, of_keys, (nothing, nothing))
    gradient_ref[:, 1, :] = (to_k * scale).astype(gradient_ref.dtype)
    gradient_ref[:, 2, :] = to_v.astype(gradient_ref.dtype)

    q, cotangent = q_ref[here, :], cotangent_ref[here, :]
    total, along = total_ref[here], along_ref[here]

    def of_queries(index: Array, to_q: Array) -> Array:
        at = pl.dslice(index * BLOCK, BLOCK)
        k = k_ref[at, :]
        scores = plgpu.dot(q, k.T)
        weights = jnp.exp2(scores * unit - total[:, None])
        weights = jnp.where(own[:, None] == segments_ref[at][None, :], weights, 0)
        of_scores = weights * (plgpu.dot(cotangent, v_ref[at, :].T) - along[:, None])
        return to_q + plgpu.dot(of_scores.astype(k.dtype), k)

    to_q = jax.lax.fori_loop(first, end, of_queries, nothing)
    gradient_ref[:, 0, :] = (to_q * scale).astype(gradient_ref.dtype)


def _blocks_met(
    segments: Int[Array, "batch length"],
) -> tuple[Int[Array, "batch blocks"], Int[Array, "batch blocks"]]:
    """For each block, the range of blocks that contain tokens of its texts.

    Ranges include the block itself, so none is empty.

    Returns:
      The first block of each range, and one past the last.
    """
    batch, length = segments.shape
    blocks = length // BLOCK
    equal = segments[:, :, None] == segments[:, None, :]
    met = equal.reshape(batch, blocks, BLOCK, blocks, BLOCK).any((2, 4))
    first, last = jnp.argmax(met, -1), blocks - jnp.argmax(met[..., ::-1], -1)
    return first.astype(jnp.int32), last.astype(jnp.int32)
