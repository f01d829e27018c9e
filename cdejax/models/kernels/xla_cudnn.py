"""XLA's and cuDNN's attention kernels, with a common description of padding."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float

from cdejax.models.kernels.padding import Padding, length_mask


def xla_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    v: Float[Array, "batch keys kv_heads head_dim"],
    padding: Padding,
    start: int,
    *,
    bias: Float[Array, "*batch heads queries keys"] | None,
    visible: Bool[Array, "*batch queries keys"] | None,
    causal: bool,
    scale: float,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes attention with XLA's kernel, which supports all options.

    `start` is the position of the first query among the keys.
    """
    queries = slice(start, start + q.shape[1])
    later = causal and start > 0
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        with_batch_axis(bias, q.dtype),
        readable_keys(padding, visible, queries, k.shape[1], causal=later),
        # With `is_causal`, JAX counts both queries and keys from 0.
        is_causal=causal and not later,
        scale=scale,
        implementation="xla",
    )


def cudnn_refuses(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    padding: Padding,
    plain: bool,
    later_causal: bool,
) -> str | None:
    """Reason why cuDNN cannot run this, or None."""
    if not plain or padding.mask is not None:
        return (
            "cuDNN attention takes lengths or segments; compact a mask, and use XLA "
            "for a bias or a window"
        )
    if q.shape[1] == 1:
        return "one query per row leaves nothing to fuse"
    if later_causal:
        return "cuDNN attention is causal for queries from the first position on only"
    if q.shape[1] % 2 or k.shape[1] % 2:
        # With lengths, a forward pass without gradients would work (jax 0.11.2).
        return "cuDNN attention has gradients for even numbers of positions only"
    return None


def cudnn_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    v: Float[Array, "batch keys kv_heads head_dim"],
    padding: Padding,
    start: int,
    *,
    causal: bool,
    scale: float,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes attention with cuDNN's kernel, given lengths or segments.

    Segments are converted to a mask. JAX passes it to cuDNN as an additive bias
    [batch, 1, queries, keys] in the dtype of `q`, and its backward pass also computes
    that bias's gradient, which is never used (jax 0.10.2: `should_export_dbias` is
    always true, and no public argument turns it off). This makes segments slower here;
    lengths cost nothing.
    """
    of_queries = of_keys = segments = None
    if padding.segments is not None:
        queries = slice(start, start + q.shape[1])
        segments = readable_keys(padding, None, queries, k.shape[1])
    if padding.lengths is not None:
        # A row of length 0 attends to its first padding token: finite, and unused.
        of_keys = jnp.maximum(padding.lengths, 1)
        of_queries = jnp.clip(padding.lengths - start, 1, q.shape[1])
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        mask=segments,
        query_seq_lengths=of_queries,
        key_value_seq_lengths=of_keys,
        is_causal=causal,
        scale=scale,
        implementation="cudnn",
    )


def with_batch_axis(
    bias: Float[Array, "*batch heads queries keys"] | None, dtype: DTypeLike
) -> Float[Array, "#batch heads queries keys"] | None:
    """Adds a batch axis to a bias that has none, and casts it."""
    if bias is None:
        return None
    return (bias if bias.ndim == 4 else bias[None]).astype(dtype)


def readable_keys(
    padding: Padding,
    visible: Bool[Array, "*batch queries keys"] | None,
    queries: slice,
    keys: int,
    *,
    causal: bool = False,
) -> Bool[Array, "#batch 1 #queries keys"] | None:
    """Which keys each query attends to; None for all.

    A query attends to the real and visible keys of its own text and, if causal, only to
    those at or before its own position.
    """
    parts = []
    if padding.mask is not None:
        parts.append(padding.mask[:, None, None, :])
    if padding.lengths is not None:
        parts.append(length_mask(padding.lengths, keys)[:, None, None, :])
    if padding.segments is not None:
        texts = padding.segments
        parts.append(texts[:, None, queries, None] == texts[:, None, None, :])
    if visible is not None:
        parts.append((visible if visible.ndim == 3 else visible[None])[:, None])
    if causal:
        where = jnp.arange(keys)
        parts.append((where[queries, None] >= where)[None, None])
    return functools.reduce(jnp.logical_and, parts) if parts else None
