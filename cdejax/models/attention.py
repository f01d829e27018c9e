"""Attention: one function for all encoders, kernel chosen by platform.

cuDNN's fused kernel takes lengths of right-padded rows, no masks. Masks are the general
form; `compact` brings them to lengths where that pays.
"""

from __future__ import annotations

import functools
import logging
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cdejax.models.layers import Initializer, Linear, Rotary, rotate

Implementation = Literal["xla", "cudnn"]
_log = logging.getLogger(__name__)


@functools.cache
def _log_choice(kernel: str, reason: str) -> None:
    _log.info("attention runs on %s (%s)", kernel, reason)


@functools.cache
def _has_cudnn() -> bool:
    device = jax.local_devices()[0]
    capability = getattr(device, "compute_capability", None)
    nvidia = device.platform == "gpu" and "NVIDIA" in device.device_kind
    return nvidia and capability is not None and float(capability) >= 8.0


def fused_kernel(dtype: DTypeLike, head_dim: int) -> bool:
    """Whether cuDNN's fused attention can run here, given lengths or no padding."""
    narrow = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return narrow and head_dim % 8 == 0 and head_dim <= 128 and _has_cudnn()


def length_mask(
    lengths: Int[Array, "batch"], length: int
) -> Bool[Array, "batch length"]:
    """Mask of right-padded rows: True on the first `lengths` positions of each."""
    return jnp.arange(length) < lengths[:, None]


def compact(
    mask: Bool[Array, "batch length"],
) -> tuple[Int[Array, "batch length"], Int[Array, "batch length"]]:
    """Order that brings each row's real tokens to its front, and its inverse.

    With `order`, `jnp.take_along_axis` makes any padding right padding, whose lengths
    are `mask.sum(1)`; with `inverse` it undoes that.
    """
    order = jnp.argsort(~mask, axis=1, stable=True)
    return order, jnp.argsort(order, axis=1)


def attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    v: Float[Array, "batch keys kv_heads head_dim"],
    *,
    mask: Bool[Array, "batch keys"] | None = None,
    lengths: Int[Array, "batch"] | None = None,
    bias: Float[Array, "*batch heads queries keys"] | None = None,
    visible: Bool[Array, "*batch queries keys"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    implementation: Implementation | None = None,
) -> Float[Array, "batch queries heads head_dim"]:
    """Softmax attention over real keys, scaled by 1/sqrt(head_dim).

    Args:
      q: queries; with `lengths` and cuDNN they are the same tokens as the keys.
      k: keys; fewer heads than the queries' are shared by groups of those.
      v: values.
      mask: which keys are real (True). Rows without a real key stay finite.
      lengths: instead, the number of real keys at the front of each row.
      bias: added to the scaled scores (XLA only).
      visible: which keys each query may read at all, a window for one (XLA only).
      causal: each query reads keys up to its own index.
      scale: instead of 1/sqrt(head_dim).
      implementation: kernel; by default cuDNN where it can run, XLA elsewhere.

    Returns:
      What each query reads, in the dtype of `q`; undefined but finite at padding.

    Raises:
      ValueError: both mask and lengths are given, or cuDNN is asked to take a mask, a
        bias or a window.
    """
    if mask is not None and lengths is not None:
        raise ValueError("give attention a mask or lengths, not both")
    plain = mask is None and bias is None and visible is None
    if implementation is None:
        fits = plain and fused_kernel(q.dtype, q.shape[-1])
        implementation = "cudnn" if fits else "xla"
        _log_choice(implementation, f"{q.dtype}, head dimension {q.shape[-1]}")
    if implementation == "cudnn":
        if not plain:
            raise ValueError(
                "cuDNN attention takes lengths; compact a mask, and use XLA for a bias "
                "or a window"
            )
        # A row of length 0 reads its first padding token: finite, and unused.
        lengths = None if lengths is None else jnp.maximum(lengths, 1)
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            query_seq_lengths=lengths,
            key_value_seq_lengths=lengths,
            is_causal=causal,
            scale=scale,
            implementation="cudnn",
        )
    if lengths is not None:
        mask = length_mask(lengths, k.shape[1])
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        _four(bias, q.dtype),
        _readable(mask, visible),
        is_causal=causal,
        scale=scale,
        implementation="xla",
    )


def _four(
    bias: Float[Array, "*batch heads queries keys"] | None, dtype: DTypeLike
) -> Float[Array, "batch heads queries keys"] | None:
    if bias is None:
        return None
    return (bias if bias.ndim == 4 else bias[None]).astype(dtype)


def _readable(
    mask: Bool[Array, "batch keys"] | None,
    visible: Bool[Array, "*batch queries keys"] | None,
) -> Bool[Array, "batch 1 queries keys"] | None:
    """Which keys each query reads: real ones, and those that it may see."""
    keys = None if mask is None else mask[:, None, None, :]
    if visible is None:
        return keys
    seen = (visible if visible.ndim == 3 else visible[None])[:, None]
    return seen if keys is None else seen & keys


class SelfAttention(nnx.Module):
    """Multi-head self-attention with one fused projection (query, key, value)."""

    def __init__(
        self,
        features: int,
        heads: int,
        rngs: nnx.Rngs,
        *,
        bias: bool,
        init: Initializer,
        head_dim: int | None = None,
        scale: float | None = None,
    ):
        inner = features if head_dim is None else heads * head_dim
        self.qkv = Linear(features, 3 * inner, rngs, bias=bias, kernel_init=init)
        self.out = Linear(inner, features, rngs, bias=bias, kernel_init=init)
        self.heads = heads
        self.scale = scale

    def __call__(
        self,
        x: Float[Array, "batch length dim"],
        *,
        mask: Bool[Array, "batch length"] | None,
        lengths: Int[Array, "batch"] | None,
        rotary: Rotary | None = None,
        score_bias: Float[Array, "*batch heads length length"] | None = None,
        visible: Bool[Array, "*batch length length"] | None = None,
    ) -> Float[Array, "batch length dim"]:
        """Attends over the real (and, where that is given, visible) tokens of a row."""
        batch, length, _ = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, -1)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        read = attention(
            q,
            k,
            v,
            mask=mask,
            lengths=lengths,
            bias=score_bias,
            visible=visible,
            scale=self.scale,
        )
        return self.out(read.reshape(batch, length, -1))
