"""One of two processes that train over two slices: prints metrics and the weights' sum.

CPUs of one machine are one slice to JAX. Here the devices of each process are numbered
apart, the last first: a slice's devices, which share parameters, belong to different
processes, and a process's stand apart in the mesh.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from cdejax.runtime import mesh as meshes
from cdejax.runtime import processes
from cdejax.runtime.global_arrays import replicate, whole_arrays
from cdejax.runtime.mesh import local_indices
from cdejax.training.objectives import InfoNCE
from cdejax.training.relation import Relation
from cdejax.training.run_model import first_state
from cdejax.training.sharding import make_mesh
from cdejax.training.step import LossSettings, put_batch, train_step
from tests.training.toy import make_batches, make_model, world

DEVICES, STEPS = 4, 3


def slice_of(device: Any) -> int:
    each = jax.local_device_count()
    return each - 1 - device.id % each


def train(mesh: Mesh) -> tuple[list[dict[str, float]], Any]:
    """Metrics of some steps on any such mesh, and the parameters after them."""
    graph, params = make_model("contextual", context=8)
    maker = make_batches(world(), devices=DEVICES, tokens=130, context=8)
    optimizer = optax.adamw(1e-2)
    settings = LossSettings(InfoNCE(0.1), Relation(margin=0.5), sequence_dropout=0.3)
    step = train_step(graph, mesh, settings, optimizer, params)
    state, key = first_state(optimizer, params, mesh), jax.random.key(7)
    found = []
    for number in range(STEPS):
        batch = put_batch(maker.step(number, local_indices(mesh)), mesh)
        state, metrics = step(state, batch, replicate(key, mesh))
        found.append({name: float(value) for name, value in metrics.items()})
    return found, whole_arrays(state.params)


def norms(params: Any) -> list[float]:
    """Of every array."""
    return [float(jnp.linalg.norm(x)) for x in jax.tree.leaves(params)]


if __name__ == "__main__":
    processes.join_processes()
    with processes.leave_in_order():
        meshes._slice_of = slice_of
        mesh = make_mesh(fsdp=2)
        owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
        metrics, params = train(mesh)
        said = {"owners": owners.tolist(), "metrics": metrics, "norms": norms(params)}
        print(json.dumps(said))  # noqa: T201
