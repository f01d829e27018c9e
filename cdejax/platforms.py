"""What the first device of this process is, asked once."""

from __future__ import annotations

import functools
import importlib.util

import jax


@functools.cache
def has_nvidia() -> bool:
    """Whether it is an NVIDIA GPU that cuDNN's attention and Triton run on."""
    device = jax.local_devices()[0]
    capability = getattr(device, "compute_capability", None)
    nvidia = device.platform == "gpu" and "NVIDIA" in device.device_kind
    return nvidia and capability is not None and float(capability) >= 8.0


@functools.cache
def has_triton() -> bool:
    """Whether kernels of our own run there: Pallas with its Triton backend.

    JAX 0.11 calls that backend deprecated. Once it is gone, cuDNN's and XLA's kernels,
    which are slower, take over.
    """
    if not has_nvidia():
        return False
    return importlib.util.find_spec("jax.experimental.pallas.triton") is not None


@functools.cache
def has_tpu() -> bool:
    """Whether it is a TPU."""
    return jax.local_devices()[0].platform == "tpu"
