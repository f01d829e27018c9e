"""What a program is made for: the devices of its mesh, never those of the process.

A program for a TPU topology may be compiled where there is only a CPU, and one for CPU
devices where there are GPUs. Whoever builds a program hands in its mesh. Kernels, deep
inside a model, ask about the mesh that they are traced under (`jax.shard_map` or
`jax.set_mesh`): JAX tracks it, and keeps what it traced for one mesh apart from what it
traced for another. Without a mesh they run on JAX's default device.
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
"""The oldest compute capability that cuDNN's fused attention and Triton run on."""


def target_device(mesh: AnyMesh | None = None) -> Any:
    """A device's `platform` and `device_kind`.

    Args:
      mesh: of the program; by default the one that is traced under, if any.
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
    """Whether it is for NVIDIA GPUs that cuDNN's attention and Triton run on."""
    device = target_device(mesh)
    if device.platform != "gpu" or "NVIDIA" not in device.device_kind:
        return False
    return _capability(device.device_kind) >= _AMPERE


def has_triton(mesh: AnyMesh | None = None) -> bool:
    """Whether kernels of our own run there: Pallas with its Triton backend.

    JAX 0.11 calls that backend deprecated. Once it is gone, cuDNN's and XLA's kernels,
    which are slower, take over.
    """
    return has_nvidia(mesh) and _triton_backend()


def default_dtype(mesh: AnyMesh) -> Any:
    """The dtype of activations: bfloat16 on GPU and TPU, float32 on CPU."""
    return jnp.dtype(jnp.float32 if platform(mesh) == "cpu" else jnp.bfloat16)


def _default_device() -> Device:
    chosen = getattr(jax.config, "jax_default_device", None)
    if isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return jax.local_devices()[0] if chosen is None else chosen


@functools.cache
def _capability(kind: str) -> float:
    """Compute capability of a kind of GPU.

    Only a GPU itself tells it. A kind that this process has none of is compiled for
    ahead of time, and taken to be recent.
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
