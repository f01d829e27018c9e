"""Attention on TPUs: JAX's splash attention, with inputs padded to its block sizes.

It has been tested against XLA's attention in Pallas' interpret mode, but not on a TPU.
Block sizes are not tuned.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cdejax.models.kernels.padding import Padding, length_mask
from cdejax.runtime.platforms import has_tpu

_LANES = 128
_LARGEST_BLOCK = 512


def splash_refuses(
    q: Float[Array, "batch queries heads head_dim"], plain: bool
) -> str | None:
    """Reason why splash attention cannot run this, or None.

    Its Pallas calls do not declare how their results vary over a mesh, so
    `jax.shard_map` accepts them with `check_vma=False` only (jax 0.10.2).

    Args:
      q: queries.
      plain: whether there is neither a bias nor a window.
    """
    if not plain:
        return "splash attention takes no bias and no window"
    if q.shape[1] == 1:
        return "one query per row leaves nothing to fuse"
    kind = getattr(jax.typeof(q), "manual_axis_type", None)
    if getattr(kind, "varying", None):
        return "splash attention runs under shard_map with check_vma=False only"
    return None


def splash_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys kv_heads head_dim"],
    v: Float[Array, "batch keys kv_heads head_dim"],
    padding: Padding,
    start: int,
    *,
    causal: bool,
    scale: float,
) -> Float[Array, "batch queries heads head_dim"]:
    """Computes attention of queries at the keys' positions from `start` on.

    Every form of padding is converted to segment ids, where 0 is padding. Positions
    added to fill blocks are padding as well; padding attends to padding, so that no row
    of scores is empty. Head dimensions are padded with zeros.
    """
    queries, dim = q.shape[1], q.shape[3]
    ids = _segment_ids(padding, k.shape[:2])
    of_queries = _filled(ids[:, start : start + queries], 1)
    scaled = (q.astype(jnp.float32) * scale).astype(q.dtype)
    q, k, v = (jnp.swapaxes(_filled(_filled(x, 1), 3), 1, 2) for x in (scaled, k, v))
    read = _splash(q, k, v, of_queries, _filled(ids, 1), start, causal)
    return jnp.swapaxes(read, 1, 2)[:, :queries, :, :dim]


def _segment_ids(
    padding: Padding, shape: tuple[int, ...]
) -> Int[Array, "batch length"]:
    if padding.segments is not None:
        return padding.segments.astype(jnp.int32)
    if padding.mask is not None:
        return padding.mask.astype(jnp.int32)
    if padding.lengths is not None:
        return length_mask(padding.lengths, shape[1]).astype(jnp.int32)
    return jnp.ones(shape, jnp.int32)


def _filled(x: jax.Array, axis: int) -> jax.Array:
    """Pads an axis with zeros to a multiple of a vector register's lanes."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % _LANES)
    return jnp.pad(x, widths)


def _block(length: int) -> int:
    """The largest block size that divides a length."""
    blocks = range(_LANES, _LARGEST_BLOCK + 1, _LANES)
    return max(block for block in blocks if length % block == 0)


def _splash(
    q: Float[Array, "batch heads queries head_dim"],
    k: Float[Array, "batch kv_heads keys head_dim"],
    v: Float[Array, "batch kv_heads keys head_dim"],
    of_queries: Int[Array, "batch queries"],
    of_keys: Int[Array, "batch keys"],
    start: int,
    causal: bool,
) -> Float[Array, "batch heads queries head_dim"]:
    """Runs the kernel row by row; sizes are multiples of 128, and `q` is scaled."""
    # Importing Pallas takes a second, and only this function needs it.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    shape = (q.shape[2], k.shape[2])
    mask = splash.CausalMask(shape, start) if causal else splash.FullMask(shape)
    rows, columns = (_block(length) for length in shape)
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask] * q.shape[1]),
        block_sizes=splash.BlockSizes(
            block_q=rows,
            block_kv=columns,
            block_q_dkv=rows,
            block_kv_dkv=columns,
            block_q_dq=rows,
            block_kv_dq=columns,
        ),
        interpret=not has_tpu(),
    )

    def row(q, k, v, of_queries, of_keys):
        read = kernel(q, k, v, splash.SegmentIds(of_queries, of_keys))
        assert isinstance(read, jax.Array)  # No residuals were requested.
        return read

    return jax.vmap(row)(q, k, v, of_queries, of_keys)
