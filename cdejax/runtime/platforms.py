"""The platform that a program is compiled for: that of its mesh, not of the process.

A program for a TPU topology may be compiled on a machine with only a CPU, and one for
CPU devices on one with GPUs. Code that builds a program passes its mesh. Kernels inside
a model use the mesh that they are traced under (`jax.shard_map` or `jax.set_mesh`),
which is part of JAX's cache keys. Without a mesh they run on JAX's default device.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from cdejax.typing import Device

AnyMesh = Mesh | AbstractMesh
_AMPERE = 8.0
"""Minimum compute capability of cuDNN's fused attention and Triton."""


def target_device(mesh: AnyMesh | None = None) -> Any:
    """A device that the program runs on, with its `platform` and `device_kind`.

    Args:
      mesh: mesh of the program (default: the one it is traced under, if any).
    """
    traced = jax.sharding.get_abstract_mesh() if mesh is None else mesh.abstract_mesh
    return traced.abstract_device or _default_device()


def platform(mesh: AnyMesh | None = None) -> str:
    """`cpu`, `gpu` or `tpu`."""
    return target_device(mesh).platform


def has_tpu(mesh: AnyMesh | None = None) -> bool:
    """Whether the program is for TPUs."""
    return platform(mesh) == "tpu"


def has_cpu(mesh: AnyMesh | None = None) -> bool:
    """Whether the program is for CPUs."""
    return platform(mesh) == "cpu"


def has_nvidia(mesh: AnyMesh | None = None) -> bool:
    """Whether it is for NVIDIA GPUs that support cuDNN's attention and Triton."""
    device = target_device(mesh)
    if device.platform != "gpu" or "NVIDIA" not in device.device_kind:
        return False
    return _capability(device.device_kind) >= _AMPERE


def has_triton(mesh: AnyMesh | None = None) -> bool:
    """Whether our own kernels can run: Pallas with its Triton backend.

    JAX 0.11 deprecates that backend. Without it, cuDNN's and XLA's slower kernels are
    used.
    """
    return has_nvidia(mesh) and _triton_backend()


def default_dtype(mesh: AnyMesh) -> Any:
    """Default dtype of activations: bfloat16 on GPU and TPU, float32 on CPU."""
    return jnp.dtype(jnp.float32 if platform(mesh) == "cpu" else jnp.bfloat16)


def _default_device() -> Device:
    chosen = getattr(jax.config, "jax_default_device", None)
    if isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return jax.local_devices()[0] if chosen is None else chosen


@functools.cache
def _capability(kind: str) -> float:
    """Compute capability of a kind of GPU.

    Only a GPU itself reports it. A kind that this process lacks, for which a program is
    compiled ahead of time, is assumed to be recent.
    """
    try:
        gpus = jax.devices("gpu")
    except RuntimeError:
        return _AMPERE
    alike = [gpu for gpu in gpus if gpu.device_kind == kind]
    return float(alike[0].compute_capability) if alike else _AMPERE


@functools.cache
def _triton_backend() -> bool:
    return importlib.util.find_spec("jax.experimental.pallas.triton") is not None
