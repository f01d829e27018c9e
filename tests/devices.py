"""Devices that no test machine has: what mesh builders and kernels ask of them."""

from dataclasses import dataclass

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
V5E = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")


def meant_for(device: AbstractDevice, count: int = 1) -> AbstractMesh:
    """A mesh for programs that are traced and lowered here, and run elsewhere."""
    auto = (AxisType.Auto,)
    return AbstractMesh((count,), ("data",), axis_types=auto, abstract_device=device)


def traced_for(device: AbstractDevice):
    """What is traced in this context is meant for such a device."""
    return jax.sharding.use_abstract_mesh(meant_for(device))


@dataclass(frozen=True)
class FakeGpu:
    """What JAX says of a GPU among several hosts', each of which is a slice."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H200"
    compute_capability: str = "9.0"


def gpu_hosts(hosts: int, each: int = 8) -> list[FakeGpu]:
    """GPUs in JAX's order, host by host."""
    numbers = range(hosts * each)
    return [FakeGpu(i, i // each, i // each) for i in numbers]
