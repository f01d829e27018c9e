"""Learning rates against their formulas; who decays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdejax.config import TrainingConfig
from cdejax.training.optimizer import learning_rate, make_optimizer, weight_decay_mask


def rates(schedule, warmup=4, total=20):
    config = TrainingConfig(learning_rate=0.1, schedule=schedule, warmup_steps=warmup)
    rate = learning_rate(config, total)
    return np.array([np.asarray(rate(step)) for step in range(total)])


def test_schedules_follow_their_formulas():
    ramp = 0.1 * np.arange(1, 5) / 4
    left = np.arange(16) / 16
    for schedule, after in {
        "linear": 0.1 * (1 - left),
        "cosine": 0.1 * (1 + np.cos(np.pi * left)) / 2,
        "constant": np.full(16, 0.1),
    }.items():
        expected = np.concatenate([ramp, after])
        np.testing.assert_allclose(rates(schedule), expected, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(rates(schedule, 0)[0], 0.1, rtol=1e-6)


@pytest.mark.parametrize("warmup", [20, 21])
def test_warm_up_longer_than_the_run_is_refused(warmup):
    with pytest.raises(ValueError, match=r"warmup_steps is \d+, but the plan has 20"):
        rates("linear", warmup)


def test_only_matrices_decay():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "null": jnp.ones(2)}
    assert weight_decay_mask(params) == {"kernel": True, "bias": False, "null": False}
    config = TrainingConfig(learning_rate=0.1, weight_decay=0.5, schedule="constant")
    optimizer = make_optimizer(config, 10)
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates: Any = optimizer.update(nothing, optimizer.init(params), params)[0]
    np.testing.assert_allclose(updates["kernel"], -0.1 * 0.5 * np.ones((2, 2)))
    np.testing.assert_array_equal(updates["bias"], 0)


def test_gradients_are_clipped_by_their_global_norm():
    params = {"a": jnp.zeros(3), "b": jnp.zeros(4)}
    config = TrainingConfig(learning_rate=1.0, clip_norm=0.5, schedule="constant")
    optimizer = make_optimizer(config, 10)
    state = optimizer.init(params)
    gradients = {"a": jnp.full(3, 3.0), "b": jnp.full(4, -4.0)}
    _, state = optimizer.update(gradients, state, params)
    first = next(x.mu for x in jax.tree.leaves(state, is_leaf=_has_mu) if _has_mu(x))
    norm = np.sqrt(sum(float(jnp.sum(x**2)) for x in first.values()))
    np.testing.assert_allclose(norm, 0.1 * 0.5, rtol=1e-5)  # (1 - beta1) * clip


def _has_mu(x):
    return hasattr(x, "mu")
