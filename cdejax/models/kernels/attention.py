"""Attention: one function for all encoders, with a kernel chosen by platform.

XLA's kernel supports all options, and so does the blocked one, which is used on CPUs in
float32. On NVIDIA GPUs, cuDNN's kernel is used for lengths of right-padded rows, and
our Triton kernel for segments, where cuDNN's is slower. Masks are the general form;
`compact` turns them into lengths where that is faster. Splash attention (TPU) supports
masks, lengths and segments; it has been tested in Pallas' interpret mode, but not on a
TPU. The last three support neither a bias nor a window.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from cdejax.models.kernels.blocked import blocked_attention, blocked_refuses
from cdejax.models.kernels.padding import ALL, Padding
from cdejax.models.kernels.splash import splash_attention, splash_refuses
from cdejax.models.kernels.triton import one_devices_part
from cdejax.models.kernels.triton_attention import triton_attention, triton_refuses
from cdejax.models.kernels.xla_cudnn import (
    cudnn_attention,
    cudnn_refuses,
    xla_attention,
)
from cdejax.runtime.platforms import has_cpu, has_nvidia, has_tpu, has_triton

Implementation = Literal["xla", "blocked", "cudnn", "triton", "splash"]
_log = logging.getLogger(__name__)


@functools.cache
def _log_choice(kernel: str, reason: str) -> None:
    _log.info("attention runs on %s (%s)", kernel, reason)


def fused_kernel(dtype: DTypeLike, head_dim: int) -> bool:
    """Whether cuDNN's fused attention can run here, with lengths or without padding."""
    narrow = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return narrow and head_dim % 8 == 0 and head_dim <= 128 and has_nvidia()


def attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    v: Float[Array, "batch keys kv_heads head_dim"],
    *,
    mask: Bool[Array, "batch keys"] | None = None,
    lengths: Int[Array, "batch"] | None = None,
    segments: Int[Array, "batch keys"] | None = None,
    bias: Float[Array, "*batch heads queries keys"] | None = None,
    visible: Bool[Array, "*batch queries keys"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    queries: slice = ALL,
    implementation: Implementation | None = None,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes softmax attention over the real keys.

    Args:
      q: queries.
      k: keys; if they have fewer heads than the queries, groups of query heads share
        one.
      v: values.
      mask: which keys are real (True). Outputs of rows without a real key are finite.
      lengths: alternatively, the number of real keys at the start of each row.
      segments: alternatively, ids of the texts packed into each row: a query attends
        to keys of its own text only. Id 0 is padding.
      bias: added to the scaled scores (XLA and blocked only).
      visible: which keys each query may attend to, such as a window (XLA and blocked
        only).
      causal: each query attends to keys up to its own position.
      scale: scale of the scores (default: 1/sqrt(head_dim)).
      queries: positions of the queries among those of the keys.
      implementation: the kernel (default: Triton for segments under `jax.shard_map`;
        otherwise cuDNN, splash or blocked if they can run, or else XLA). Without a GPU
        or TPU, Triton and splash run in the slow interpret mode.

    Returns:
      The attention output in the dtype of `q`; undefined but finite at padding.

    Raises:
      ValueError: more than one of mask, lengths and segments is given, the number of
        queries differs from the number of their positions, or the kernel does not
        support an option.
    """
    padding = Padding(mask, lengths, segments)
    padding.check()
    start, stop, step = queries.indices(k.shape[1])
    if step != 1 or stop - start != q.shape[1]:
        raise ValueError(
            f"{q.shape[1]} queries cannot stand at {queries} of {k.shape[1]} keys"
        )
    plain = bias is None and visible is None
    refusals = {
        "xla": None,
        "blocked": blocked_refuses(q),
        "cudnn": cudnn_refuses(q, k, padding, plain, causal and start > 0),
        "triton": triton_refuses(q, k, padding, plain, causal),
        "splash": splash_refuses(q, plain),
    }
    if implementation is None:
        implementation = _choose(q, padding, refusals)
    if (refusal := refusals[implementation]) is not None:
        raise ValueError(refusal)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    if implementation == "splash":
        return splash_attention(q, k, v, padding, start, causal=causal, scale=scale)
    if implementation == "cudnn":
        return cudnn_attention(q, k, v, padding, start, causal=causal, scale=scale)
    if implementation == "triton":
        assert padding.segments is not None
        return triton_attention(q, k, v, padding.segments, scale=scale)
    general = blocked_attention if implementation == "blocked" else xla_attention
    return general(
        q,
        k,
        v,
        padding,
        start,
        bias=bias,
        visible=visible,
        causal=causal,
        scale=scale,
    )


def _choose(
    q: Float[Array, "batch queries heads head_dim"],
    padding: Padding,
    refusals: dict[str, str | None],
) -> Implementation:
    """Returns the first kernel of this platform that can run, or XLA.

    Each choice is logged once.
    """
    kernels: tuple[Implementation, ...] = ()
    if has_tpu():
        kernels = ("splash",)
    elif fused_kernel(q.dtype, q.shape[-1]):
        ours = padding.segments is not None and has_triton() and one_devices_part(q)
        kernels = ("triton", "cudnn") if ours else ("cudnn",)
    elif has_cpu():
        kernels = ("blocked",)
    reason = f"{q.dtype}, head dimension {q.shape[-1]}"
    if padding.segments is not None:
        reason += ", segments"
    chosen: Implementation = "xla"
    for kernel in kernels:
        if refusals[kernel] is None:
            chosen = kernel
            break
        reason += f"; {refusals[kernel]}"
    _log_choice(chosen, reason)
    return chosen
