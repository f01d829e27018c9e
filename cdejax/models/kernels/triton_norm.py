"""Layer norm of a sum on NVIDIA GPUs: a Triton kernel, written in Pallas.

It is bound by memory bandwidth. Rows stay in registers, so the forward pass reads the
two summands and writes their sum and its norm, once each; the backward pass reads the
sum and the cotangent and writes the gradient. XLA reads a row again for each mean, and
copies a summand that a matrix product adds to its own result.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cdejax.models.kernels.triton import call_triton, one_devices_part, result

_WIDEST = 4096
"""Maximum number of features of a row, which has to fit in registers."""
_WARP = 1024
"""Number of elements of each array that a warp holds in registers at a time."""
_ROWS = 32
"""Number of rows per program of the backward pass, over which it sums."""


def triton_takes(
    x: Float[Array, "*rows dim"], added: Float[Array, "*rows dim"]
) -> bool:
    """Whether the kernel supports these summands."""
    alike = jax.typeof(x) == jax.typeof(added)
    narrow = x.dtype in (jnp.bfloat16, jnp.float16) and x.shape[-1] <= _WIDEST
    return one_devices_part(x) and alike and narrow and x.size > 0


class _Saved(NamedTuple):
    """Values saved for the backward pass."""

    total: Float[Array, "rows dim"]
    """The sum of the two summands, in their dtype."""
    scale: Float[Array, "dim"]
    mean: Float[Array, "rows"]
    inverse: Float[Array, "rows"]
    """Reciprocal of the standard deviation."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def triton_add_norm(
    x: Float[Array, "rows dim"],
    added: Float[Array, "rows dim"],
    scale: Float[Array, "dim"],
    bias: Float[Array, "dim"],
    eps: float,
) -> Float[Array, "rows dim"]:
    """Layer normalisation of `x + added`, in the slow interpret mode without a GPU.

    Scale and bias must have the same dtype. It can be differentiated only once.
    """
    return _forward(x, added, scale, bias, eps)[0]


def _forward(
    x: Float[Array, "rows dim"],
    added: Float[Array, "rows dim"],
    scale: Float[Array, "dim"],
    bias: Float[Array, "dim"],
    eps: float,
) -> tuple[Float[Array, "rows dim"], _Saved]:
    from jax.experimental import pallas as pl

    rows, dim = x.shape
    width, together, warps = _block(dim)
    block = pl.BlockSpec((together, width), lambda i: (i, 0))
    features = pl.BlockSpec((width,), lambda i: (0,))
    each = pl.BlockSpec((together,), lambda i: (i,))
    y, total, mean, inverse = call_triton(
        functools.partial(_forward_kernel, rows=rows, dim=dim, eps=eps),
        warps=warps,
        stages=2,
        grid=(pl.cdiv(rows, together),),
        in_specs=[block, block, features, features],
        out_specs=[block, block, each, each],
        out_shape=[
            *[result(x, x.shape, x.dtype)] * 2,
            *[result(x, (rows,), jnp.float32)] * 2,
        ],
        name="add_norm",
    )(x, added, scale, bias)
    return y, _Saved(total, scale, mean, inverse)


def _backward(
    eps: float, saved: _Saved, cotangent: Float[Array, "rows dim"]
) -> tuple[Array, Array, Array, Array]:
    from jax.experimental import pallas as pl

    del eps
    rows, dim = cotangent.shape
    width, together, warps = _block(dim)
    programs = pl.cdiv(rows, _ROWS)
    block = pl.BlockSpec((_ROWS, width), lambda i: (i, 0))
    features = pl.BlockSpec((width,), lambda i: (0,))
    each = pl.BlockSpec((_ROWS,), lambda i: (i,))
    partial = pl.BlockSpec((None, width), lambda i: (i, 0))
    gradient, *partials = call_triton(
        functools.partial(_backward_kernel, rows=rows, dim=dim, together=together),
        warps=warps,
        stages=2,
        grid=(programs,),
        in_specs=[block, block, features, each, each],
        out_specs=[block, partial, partial],
        out_shape=[
            result(cotangent, cotangent.shape, cotangent.dtype),
            *[result(cotangent, (programs, dim), jnp.float32)] * 2,
        ],
        name="add_norm_gradient",
    )(cotangent, *saved)
    of_scale, of_bias = (x.sum(0).astype(saved.scale.dtype) for x in partials)
    return gradient, gradient, of_scale, of_bias


triton_add_norm.defvjp(_forward, _backward)


def _forward_kernel(
    x_ref: Any,
    added_ref: Any,
    scale_ref: Any,
    bias_ref: Any,
    y_ref: Any,
    total_ref: Any,
    mean_ref: Any,
    inverse_ref: Any,
    *,
    rows: int,
    dim: int,
    eps: float,
) -> None:
    """Computes a few rows at once."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    here = pl.program_id(0) * x_ref.shape[0] + jnp.arange(x_ref.shape[0])
    feature = jnp.arange(x_ref.shape[1]) < dim
    inside = (here < rows)[:, None] & feature[None, :]
    load = functools.partial(plgpu.load, mask=inside, other=0.0)
    x, added = (load(ref).astype(jnp.float32) for ref in (x_ref, added_ref))
    total = (x + added).astype(total_ref.dtype)
    wide = total.astype(jnp.float32)
    mean = wide.sum(1) / dim
    away = jnp.where(inside, wide - mean[:, None], 0.0)
    inverse = jax.lax.rsqrt((away * away).sum(1) / dim + eps)
    scale, bias = (
        plgpu.load(ref, mask=feature, other=0.0).astype(jnp.float32)
        for ref in (scale_ref, bias_ref)
    )
    y = away * inverse[:, None] * scale[None, :] + bias[None, :]
    plgpu.store(total_ref, total, mask=inside)
    plgpu.store(y_ref, y.astype(y_ref.dtype), mask=inside)
    plgpu.store(mean_ref, mean, mask=here < rows)
    plgpu.store(inverse_ref, inverse, mask=here < rows)


def _backward_kernel(
    cotangent_ref: Any,
    total_ref: Any,
    scale_ref: Any,
    mean_ref: Any,
    inverse_ref: Any,
    gradient_ref: Any,
    of_scale_ref: Any,
    of_bias_ref: Any,
    *,
    rows: int,
    dim: int,
    together: int,
) -> None:
    """Computes many rows, a few at a time; the formula is that of `elementwise`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    first = pl.program_id(0) * _ROWS
    feature = jnp.arange(total_ref.shape[1]) < dim
    scale = plgpu.load(scale_ref, mask=feature, other=0.0).astype(jnp.float32)

    def body(index: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        at = pl.dslice(index * together, together)
        here = first + index * together + jnp.arange(together)
        inside = (here < rows)[:, None] & feature[None, :]
        load = functools.partial(plgpu.load, mask=inside, other=0.0)
        own = functools.partial(plgpu.load, mask=here < rows, other=0.0)
        cotangent = load(cotangent_ref.at[at, :]).astype(jnp.float32)
        total = load(total_ref.at[at, :]).astype(jnp.float32)
        mean, inverse = own(mean_ref.at[at]), own(inverse_ref.at[at])
        normed = jnp.where(inside, (total - mean[:, None]) * inverse[:, None], 0.0)
        scaled = cotangent * scale[None, :]
        along = (scaled * normed).sum(1) / dim
        level = scaled.sum(1) / dim
        gradient = scaled - level[:, None] - normed * along[:, None]
        gradient = (gradient * inverse[:, None]).astype(gradient_ref.dtype)
        plgpu.store(gradient_ref.at[at, :], gradient, mask=inside)
        of_scale, of_bias = sums
        return of_scale + (cotangent * normed).sum(0), of_bias + cotangent.sum(0)

    nothing = jnp.zeros(total_ref.shape[1], jnp.float32)
    sums = jax.lax.fori_loop(0, _ROWS // together, body, (nothing, nothing))
    for ref, found in zip((of_scale_ref, of_bias_ref), sums, strict=True):
        plgpu.store(ref, found, mask=feature)


def _block(dim: int) -> tuple[int, int, int]:
    """Features per row, padded to a power of two; rows at a time; number of warps."""
    width = 1 << (dim - 1).bit_length()
    return width, min(max(_WARP // width, 1), _ROWS), max(width // _WARP, 1)
