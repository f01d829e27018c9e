"""How much a device encodes at once, and which activations it saves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array

from cdejax.models import TrainableModel
from cdejax.runtime.platforms import target_device
from cdejax.runtime.processes import from_main
from cdejax.training.batch_maker import BatchMaker
from cdejax.training.sharding import FSDP, split_dim
from cdejax.training.step import RECOMPUTE, Kept

_UNKNOWN = 4096
"""Token positions per chunk if a device's memory is unknown (as on CPUs)."""
_CORE_GIB = {
    "TPU v2": 8.0,
    "TPU v3": 16.0,
    "TPU v4": 16.0,
    "TPU v5 lite": 16.0,
    "TPU v5e": 16.0,
    "TPU v5": 47.5,
    "TPU v5p": 47.5,
    "TPU v6 lite": 32.0,
    "TPU v6e": 32.0,
    "TPU7x": 96.0,
}
"""Memory per TPU core by kind, for devices that do not report it: that of a chip in
the documentation of Cloud TPU, divided by its cores."""
_ENOUGH = 32_768
"""Positions per chunk beyond which accelerators do not get faster."""
_USABLE = 0.92
"""Share of a device's memory to plan with; the rest is for temporaries."""
_COPIES = 4.0
"""Copies of gathered parameters in a step: the parameters, in the activations' dtype as
well, and their gradients, accumulated and of one chunk."""
_STATE = 3.0
"""Copies that are sharded over all devices: parameters and two moments."""


def chunk_tokens(model: TrainableModel, mesh: Mesh) -> int:
    """Token positions to encode at once on a device: as many as are useful and fit.

    Two chunks must fit in addition to the parameters: one being computed, and one whose
    activations are saved.
    """
    free = _free_bytes(model, mesh)
    if free is None:
        return _UNKNOWN
    fitting = int(free / 2 / activation_bytes(model, mesh))
    return max(min(fitting, _ENOUGH) // 256 * 256, 256)


def kept_chunks(
    model: TrainableModel,
    maker: BatchMaker,
    mesh: Mesh,
    on_cpu: float = 0.0,
) -> Kept:
    """Number of chunks whose activations fit into the remaining memory.

    Only chunks of the group with the most positions are saved: every group with saved
    chunks adds a copy of the encoder to the compiled step.

    Args:
      model: the model to train.
      maker: its batches.
      mesh: the devices.
      on_cpu: GiB for the saved activations of all devices of this process, if devices
        do not report their memory. It does not depend on the host's free memory: a
        resumed run would sum in another order.
    """
    free = _free_bytes(model, mesh)
    if free is None:
        free = on_cpu * 2**30 / (mesh.size // jax.process_count())
    if free <= 0:
        return RECOMPUTE
    # Vectors of all slots and their gradients.
    vectors = sum(shape.vectors for layout in maker.layouts for shape in layout.shapes)
    free -= 2 * 4 * vectors * model.dim
    layout, each = maker.layouts[0], activation_bytes(model, mesh)
    sizes = [layout.chunk_positions(shape) for shape in layout.shapes]
    steady = [n * shape.least for n, shape in zip(sizes, layout.shapes, strict=True)]
    group = int(np.argmax(steady))
    room = int((free - max(sizes) * each) / (sizes[group] * each))
    kept = [0] * len(sizes)
    kept[group] = min(max(room, 0), layout.shapes[group].least)
    return Kept(tuple(kept))


def activation_bytes(model: TrainableModel, mesh: Mesh) -> float:
    """Bytes of activations that the backward pass needs per token position.

    Args:
      model: the model.
      mesh: mesh of the devices that compute it, whose kernels save more or less.
    """
    graphdef, params = nnx.split(model)
    width, small, large = min(64, model.text_encoder.longest or 64), 8, 16

    def residual_bytes(rows: int) -> int:
        def encode(params: Any, ids: Array, lengths: Array, context: Array) -> Array:
            model = nnx.merge(graphdef, params)
            return model.embed(ids, lengths, context=(context, None))

        def pullback(params: Any, *rest: Array) -> Any:
            return jax.vjp(lambda p: encode(p, *rest), params)[1]

        ids = jax.ShapeDtypeStruct((rows, width), jnp.int32)
        lengths = jax.ShapeDtypeStruct((rows,), jnp.int32)
        context = jax.ShapeDtypeStruct((model.context_size, model.dim), jnp.float32)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            found = jax.eval_shape(pullback, params, ids, lengths, context)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(found))

    row = model.context_size + model.soft_tokens + width
    positions = (large - small) * row
    return (residual_bytes(large) - residual_bytes(small)) / positions


def device_bytes(mesh: Mesh) -> int | None:
    """Memory of a device of a mesh, as it reports or by its kind; None if unknown."""
    here = [d for d in mesh.devices.flat if d in d.client.local_devices()]
    stats = here[0].memory_stats() if here else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    device = target_device(mesh)
    core = _CORE_GIB.get(device.device_kind)
    return None if core is None else round(core * (device.num_cores or 1) * 2**30)


def _free_bytes(model: TrainableModel, mesh: Mesh) -> float | None:
    """Memory of a device for activations; None if its memory is unknown."""
    # Process 0 decides for all: other chunks would make another program.
    limit = from_main("device memory", lambda: device_bytes(mesh))
    if limit is None:
        return None
    held = 0.0
    for x in jax.tree.leaves(nnx.split(model)[1]):
        split = split_dim(x.shape, mesh.size) is not None
        copies = _COPIES / mesh.shape[FSDP] + _STATE / mesh.size
        held += 4 * x.size * (copies if split else _COPIES + _STATE)
    free = _USABLE * limit - held
    if free <= 0:
        raise ValueError(
            f"the model's parameters and their gradients need {held / 2**30:.1f} GiB "
            f"of a device's {limit / 2**30:.1f}; share them among devices with "
            "training.fsdp"
        )
    return free
