"""Meshes and programs of real TPU topologies, for which libtpu compiles without a TPU.

Run with `pytest -m tpu tests/runtime` where the extra `tpu` is installed.
"""

import functools
import importlib.util
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental import topologies
from jax.sharding import NamedSharding

from cdejax.embedding.program import Program
from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.runtime.platforms import default_dtype, has_tpu
from cdejax.training.memory import activation_bytes, chunk_tokens, device_bytes
from cdejax.training.objectives import InfoNCE
from cdejax.training.sharding import EVERYWHERE, ROWS, make_mesh, shardings_of
from cdejax.training.step import LossSettings, State, train_step
from tests.training.toy import VOCABULARY, make_batches, world

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu"
    ),
]
GIB = 2**30


@functools.cache
def devices(name, count=1):
    """Of so many slices; libtpu does not ask Google Cloud what machine this is."""
    settings = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4"}
    settings |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_MIN_LOG_LEVEL": "4"}
    for variable, value in settings.items():
        os.environ.setdefault(variable, value)
    return topologies.get_topology_desc(
        platform="tpu", topology_name=name, num_slices=count
    ).devices


@pytest.mark.parametrize("fsdp", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("v3:4x4", 1),
        ("v4:4x4x4", 1),
        ("v4:4x4x4", 2),
        ("v5e:2x4", 1),
        ("v5e:4x4", 2),
        ("v5e:16x16", 1),
        ("v5p:2x2x2", 1),
        ("v5p:4x4x4", 2),
        ("v6e:8x8", 1),
        ("v6e:16x16", 4),
        ("tpu7x:2x2x2", 1),
    ],
)
def test_every_topology_has_a_mesh_whose_groups_are_boxes_of_a_slice(name, count, fsdp):
    chips = devices(name, count)
    mesh = make_mesh(chips, fsdp)
    assert dict(mesh.shape) == {"data": len(chips) // fsdp, "fsdp": fsdp}
    assert set(mesh.devices.flat) == set(chips)
    number = lambda chip: getattr(chip, "slice_index", 0)  # noqa: E731
    numbers = [number(chip) for chip in mesh.devices.flat]
    assert numbers == sorted(numbers)
    for group in mesh.devices:
        assert len(set(map(number, group))) == 1
        places = np.array([[*chip.coords, chip.core_on_chip] for chip in group])
        assert np.prod(np.ptp(places, axis=0) + 1) == fsdp


def test_sizes_that_jax_cannot_place_keep_the_order_of_the_devices():
    chips = devices("v5p:4x4x20")
    assert make_mesh(chips, 10).devices.ravel().tolist() == list(chips)


def test_an_impossible_division_names_the_setting():
    with pytest.raises(ValueError, match=r"^training\.fsdp is 32, .* the 2 slices"):
        make_mesh(devices("v5e:4x4", 2), 32)


def encoder(mesh, **sizes):
    config = BertConfig(VOCABULARY, 128, 1, 2, 256, **sizes)
    return BiEncoder(Bert(config, nnx.Rngs(0), default_dtype(mesh)))


@pytest.mark.parametrize("fsdp", [1, 2])
@pytest.mark.parametrize(("name", "count"), [("v5e:2x2", 1), ("v5e:2x2", 2)])
def test_a_training_step_for_tpus_is_lowered_on_a_cpu(name, count, fsdp):
    mesh = make_mesh(devices(name, count), fsdp)
    graph, params = nnx.split(encoder(mesh))
    optimizer = optax.adamw(1e-3)
    moments = jax.eval_shape(optimizer.init, params)
    state = State(params, moments, jnp.zeros((), jnp.int32))
    maker = make_batches(world(batch=32), devices=mesh.size, tokens=128)
    every, rows = (NamedSharding(mesh, spec) for spec in (EVERYWHERE, ROWS))
    batch = maker.step(0)
    order = shape(batch.context_order, every)
    batch = jax.tree.map(
        lambda x: shape(x, rows), batch._replace(context_order=None)
    )._replace(context_order=order)
    state = jax.tree.map(shape, state, shardings_of(state, mesh))
    step = train_step(graph, mesh, LossSettings(InfoNCE(0.1)), optimizer, params)
    text = step.lower(state, batch, shape(jax.random.key(0), every)).as_text()
    assert text.count("tpu_custom_call") >= 3  # forward, and two of the backward pass
    assert "bf16" in text


def shape(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def test_an_encoder_is_compiled_for_tpus_on_a_cpu():
    mesh = make_mesh(devices("v5e:2x2"))
    graph, params = nnx.split(encoder(mesh))
    every, rows = (NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("data",)))
    run = Program(graph, "alone", mesh).run
    arrays = np.ones((8, 128), np.int32), np.ones(8, np.int32)
    ids, lengths = (shape(x, rows) for x in arrays)
    params = jax.tree.map(lambda x: shape(x, every), params)
    text = run.lower(params, None, None, ids, lengths).compile().as_text()
    assert "tpu_custom_call" in text


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("v3:4x4", 16),
        ("v4:4x4x4", 16),
        ("v5e:4x4", 16),
        ("v5p:4x4x4", 95),
        ("v6e:8x8", 32),
        ("tpu7x:2x2x2", 96),
    ],
)
def test_memory_is_known_of_tpus_that_are_not_here(name, gib):
    mesh = make_mesh(devices(name))
    assert has_tpu(mesh)
    assert device_bytes(mesh) == gib * GIB


def test_chunks_fill_a_tpus_memory_by_its_own_kernels():
    """Splash attention fills heads up to 128 dimensions, XLA's on CPU does not."""
    tpu, cpu = make_mesh(devices("v5e:4x4")), make_mesh(jax.devices())
    model = encoder(tpu, max_position_embeddings=64)
    assert chunk_tokens(model, tpu) == 32_768
    assert activation_bytes(model, tpu) != activation_bytes(model, cpu)
