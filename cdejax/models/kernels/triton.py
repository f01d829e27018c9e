"""What kernels of our own for NVIDIA GPUs share: Pallas, compiled by Triton.

They are chosen under `jax.shard_map` alone, as in training and encoding. XLA does not
split them over devices: of sharded arrays under plain `jax.jit` each device would
gather all.
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
    """`pallas_call` of a kernel; interpreted, slowly, unless it is for a GPU."""
    # Pallas takes a second to load.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    how = plgpu.CompilerParams(num_warps=warps, num_stages=stages)
    interpret = platform() != "gpu"
    return pl.pallas_call(kernel, compiler_params=how, interpret=interpret, **call)


def one_devices_part(x: Shaped[Array, "..."]) -> bool:
    """Whether this is what one device holds, under a `jax.shard_map` that checks it."""
    return bool(jax.typeof(x).manual_axis_type.varying)


def result(
    x: Shaped[Array, "..."], shape: tuple[int, ...], dtype: Any
) -> jax.ShapeDtypeStruct:
    """A kernel's result, which varies over the mesh axes that `x` varies over."""
    kind = jax.typeof(x).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind)
