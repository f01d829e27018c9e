"""Checkpoints move between device counts and skip what cannot be read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cdejax.config import TrainingConfig
from cdejax.training.checkpoint import Best, Checkpoints
from cdejax.training.optimizer import make_optimizer
from cdejax.training.sharding import make_mesh
from cdejax.training.start import BEST, CHECKPOINTS, trained_params
from cdejax.training.step import State


def state_on(devices, value=1.0):
    mesh = make_mesh(jax.devices()[:devices])
    state = {"w": jnp.full((4, 3), value), "step": jnp.asarray(7, jnp.int32)}
    return mesh, jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def read(folder, like, mesh):
    found = Checkpoints(folder, keep=2).restore_latest(like, mesh)
    assert found is not None
    return found


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_written_on_eight_devices_read_on_others(tmp_path, devices):
    _, written = state_on(8, 0.1)
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(5, written)
    checkpoints.close()
    mesh, like = state_on(devices, 0.0)
    step, found = read(tmp_path, like, mesh)
    assert step == 5
    for name in written:
        np.testing.assert_array_equal(found[name], written[name])
        assert found[name].sharding.device_set == set(mesh.devices.flat)


def test_keeps_the_latest_ones(tmp_path):
    _, state = state_on(1)
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, state)
    checkpoints.close()
    assert Checkpoints(tmp_path, keep=2).steps() == [2, 3]


def test_nothing_there_is_no_checkpoint(tmp_path):
    mesh, state = state_on(1)
    assert Checkpoints(tmp_path, keep=1).restore_latest(state, mesh) is None


def test_another_model_is_refused(tmp_path):
    mesh, state = state_on(1)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, state)
    checkpoints.close()
    other = {"w": jnp.zeros((9, 9)), "step": state["step"]}
    with pytest.raises(ValueError, match="none of the checkpoints"):
        Checkpoints(tmp_path, keep=1).restore_latest(other, mesh)


def test_best_keeps_the_highest_score(tmp_path):
    mesh, _ = state_on(1)
    best = Best(tmp_path)
    for step, score in ((1, 0.2), (2, 0.5), (3, 0.4)):
        best.offer(step, score, state_on(1, score)[1])
    best.close()
    again = Best(tmp_path)
    assert again.score == 0.5
    again.offer(4, 0.3, state_on(1, 0.3)[1])
    again.close()
    step, found = read(tmp_path, state_on(1)[1], mesh)
    assert step == 2
    np.testing.assert_allclose(found["w"], 0.5)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_trained_parameters_without_an_evaluation(tmp_path, schedule):
    """Nothing held out: no best checkpoint, so the last one is what was trained."""
    params = {"w": jnp.full((4, 3), 2.0), "b": jnp.ones(3)}
    config = TrainingConfig(schedule=schedule, warmup_steps=2)
    inner = make_optimizer(config, 9).init(params)
    checkpoints = Checkpoints(tmp_path / CHECKPOINTS, keep=2)
    checkpoints.save(9, State(params, inner, jnp.asarray(9, jnp.int32)))
    checkpoints.close()
    Best(tmp_path / BEST).close()
    found = trained_params(tmp_path, jax.tree.map(jnp.zeros_like, params))
    for name in params:
        np.testing.assert_array_equal(found[name], params[name])
