"""Attention for CPUs: a few rows at a time, so that their scores stay in the cache.

The scores of a whole batch would be written to memory and read back several times.
Heads come before positions, so that every product is a plain matrix product. Outputs,
not scores, are divided by the sum of the weights, which saves a pass over the scores.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cdejax.models.kernels.padding import Padding
from cdejax.models.kernels.xla_cudnn import readable_keys, with_batch_axis

_CACHE = 1 << 22
"""Bytes of scores computed at once: part of a processor's last-level cache."""
_UNREAD = -0.7 * float(jnp.finfo(jnp.float32).max)
"""Score of masked keys: finite, so that rows without real keys are finite as well."""


def blocked_refuses(q: Float[Array, "batch queries heads head_dim"]) -> str | None:
    """Reason why this kernel cannot run, or None."""
    return None if q.dtype == jnp.float32 else "attention in blocks takes float32"


def blocked_attention(
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
    """Computes the same as `xla_attention`, with the batch in blocks of rows.

    If there is more than one block, the backward pass recomputes the scores of each.
    """
    groups = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) if groups > 1 else x for x in (k, v))
    queries = slice(start, start + q.shape[1])
    reads = readable_keys(padding, visible, queries, k.shape[1], causal=causal)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * scale, k, v))
    read = _in_blocks(q, k, v, with_batch_axis(bias, q.dtype), reads)
    return jnp.swapaxes(read, 1, 2)


def _in_blocks(
    q: Float[Array, "batch heads queries head_dim"],
    k: Float[Array, "batch heads keys head_dim"],
    v: Float[Array, "batch heads keys head_dim"],
    bias: Float[Array, "#batch heads queries keys"] | None,
    reads: Bool[Array, "#batch 1 #queries keys"] | None,
) -> Float[Array, "batch heads queries head_dim"]:
    batch, heads, queries, _ = q.shape
    rows = _rows_at_once(batch, 4 * heads * queries * k.shape[2])
    if rows == batch:
        return _attend(q, k, v, bias, reads)
    # Arrays that all rows share are not split into blocks.
    own = {"bias": bias, "reads": reads}
    shared = {n: x for n, x in own.items() if x is None or x.shape[0] == 1}
    of_rows = {n: x for n, x in own.items() if n not in shared}
    block = jax.checkpoint(functools.partial(_attend, **shared), prevent_cse=False)
    parts = jax.tree.map(
        lambda x: x.reshape(batch // rows, rows, *x.shape[1:]),
        {"q": q, "k": k, "v": v, **of_rows},
    )
    return jax.lax.map(lambda part: block(**part), parts).reshape(q.shape)


def _rows_at_once(batch: int, row_bytes: int) -> int:
    """The largest divisor of the batch size for which the scores fit in the cache."""
    fitting = max(_CACHE // row_bytes, 1)
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= fitting)


def _attend(
    q: Float[Array, "rows heads queries head_dim"],
    k: Float[Array, "rows heads keys head_dim"],
    v: Float[Array, "rows heads keys head_dim"],
    bias: Float[Array, "#rows heads queries keys"] | None,
    reads: Bool[Array, "#rows 1 #queries keys"] | None,
) -> Float[Array, "rows heads queries head_dim"]:
    scores = jnp.einsum("rhqd,rhkd->rhqk", q, k)
    scores = scores if bias is None else scores + bias
    scores = scores if reads is None else jnp.where(reads, scores, _UNREAD)
    highest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    weights = jnp.exp(scores - highest)
    read = jnp.einsum("rhqk,rhkd->rhqd", weights, v)
    return read / weights.sum(-1, keepdims=True)
