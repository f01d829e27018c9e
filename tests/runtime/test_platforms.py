"""Kernels, dtypes and options follow the mesh's devices, not those of the process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.embedding.program import Program
from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.models.kernels.attention import attention
from cdejax.runtime import platforms
from cdejax.runtime.compilation import model_options
from cdejax.runtime.platforms import (
    default_dtype,
    has_nvidia,
    has_tpu,
    has_triton,
    platform,
)
from cdejax.training.run_model import activation_dtype
from cdejax.training.sharding import make_mesh
from tests.devices import H200, V5E, gpu_hosts, meant_for, traced_for


@pytest.fixture
def among_gpus(monkeypatch):
    """A process whose own devices are GPUs."""
    (gpu,) = gpu_hosts(1, 1)
    monkeypatch.setattr(platforms, "_default_device", lambda: gpu)


def test_the_mesh_that_is_traced_under_is_asked():
    assert platform() == "cpu"
    assert not has_tpu()
    assert not has_nvidia()
    with traced_for(V5E):
        assert has_tpu()
        assert not has_nvidia()
    with traced_for(H200):
        assert has_nvidia()
        assert has_triton()
        assert not has_tpu()


def test_a_mesh_of_gpus_is_asked_where_there_is_only_a_cpu():
    mesh = make_mesh(gpu_hosts(2))
    assert platform(mesh) == "gpu"
    assert has_nvidia(mesh)
    assert model_options(mesh)
    assert default_dtype(mesh) == activation_dtype("auto", mesh) == jnp.bfloat16
    assert activation_dtype("float32", mesh) == jnp.float32


def test_cpu_devices_are_asked_among_gpus(among_gpus):
    assert platform() == "gpu"
    mesh = make_mesh(jax.devices("cpu"))
    assert model_options(mesh) is None
    assert default_dtype(mesh) == jnp.float32
    q = jnp.ones((8, 4, 2, 32), jnp.bfloat16)
    run = jax.shard_map(
        lambda q: attention(q, q, q, segments=jnp.ones(q.shape[:2], jnp.int32)),
        mesh=mesh,
        in_specs=jax.P("data"),
        out_specs=jax.P("data"),
    )
    np.testing.assert_array_equal(jax.jit(run)(q), q)
    with pytest.raises(ValueError, match="cuDNN"):  # what the process would take
        attention(q, q, q, bias=jnp.ones((2, 4, 4)), implementation="cudnn")


def test_a_function_is_traced_anew_for_other_devices():
    @jax.jit
    def wide(x):
        return x.astype(jnp.float32 if platform() == "cpu" else jnp.bfloat16)

    x = jnp.ones(2)
    assert wide(x).dtype == jnp.float32
    with traced_for(V5E):
        assert jax.eval_shape(wide, x).dtype == jnp.bfloat16
    assert wide(x).dtype == jnp.float32


def test_jaxs_default_device_is_asked_without_a_mesh(monkeypatch):
    (gpu,) = gpu_hosts(1, 1)
    monkeypatch.setattr(jax, "local_devices", lambda backend="gpu": [gpu])
    assert platform() == "gpu"
    with jax.default_device(jax.devices("cpu")[0]):
        assert platform() == "cpu"


@pytest.mark.parametrize(("capability", "recent"), [("7.5", False), ("8.0", True)])
def test_cards_before_ampere_run_none_of_the_fused_kernels(
    capability, recent, monkeypatch
):
    (gpu,) = gpu_hosts(1, 1)
    object.__setattr__(gpu, "compute_capability", capability)
    monkeypatch.setattr(jax, "devices", lambda _: [gpu])
    platforms._capability.cache_clear()
    with traced_for(H200):
        assert has_nvidia() == has_triton() == recent
    platforms._capability.cache_clear()


def test_an_encoder_for_tpus_is_lowered_on_a_cpu():
    """With splash attention, compiled and not interpreted, under `jax.shard_map`."""

    def lowered(mesh, place, dtype):
        encoder = Bert(BertConfig(100, 128, 1, 2, 128), nnx.Rngs(0), dtype)
        graph, params = nnx.split(BiEncoder(encoder))
        ids, lengths = jnp.ones((8, 128), jnp.int32), jnp.ones(8, jnp.int32)
        run = Program(graph, "alone", mesh).run
        traced = run.trace(params, None, None, ids, lengths)
        return traced.lower(lowering_platforms=(place,)).as_text()

    text = lowered(meant_for(V5E, 4), "tpu", jnp.bfloat16)
    assert text.count("tpu_custom_call") == 1
    text = lowered(make_mesh(jax.devices()), "cpu", jnp.float32)
    assert "tpu_custom_call" not in text
