"""Shared parts of our kernels for NVIDIA GPUs, written in Pallas, compiled by Triton.

They are used only under `jax.shard_map`, as in training and encoding. XLA cannot
partition them: under plain `jax.jit`, each device would gather all of a sharded array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Shaped

from cdejax.runtime.platforms import platform


def call_triton(
    kernel: Callable[..., None], *, warps: int, stages: int, **call: Any
) -> Callable[..., Any]:
    """`pallas_call` of a kernel, in the slow interpret mode if there is no GPU."""
    # Importing Pallas takes a second.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    how = plgpu.CompilerParams(num_warps=warps, num_stages=stages)
    interpret = platform() != "gpu"
    return pl.pallas_call(kernel, compiler_params=how, interpret=interpret, **call)


def one_devices_part(x: Shaped[Array, "..."]) -> bool:
    """Whether `x` is one device's part of an array, inside `jax.shard_map`.

    It is known only if that `shard_map` checks varying axes (`check_vma`).
    """
    return bool(jax.typeof(x).manual_axis_type.varying)


def result(
    x: Shaped[Array, "..."], shape: tuple[int, ...], dtype: Any
) -> jax.ShapeDtypeStruct:
    """Type of a kernel's result, which varies over the same mesh axes as `x`."""
    kind = jax.typeof(x).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind)
