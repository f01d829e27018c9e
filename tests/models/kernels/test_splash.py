"""Splash attention, interpreted, against XLA's, and when it is chosen."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdejax.models.kernels import attention as module
from cdejax.models.kernels.attention import attention
from cdejax.models.kernels.padding import length_mask

# Largest difference of outputs, and share of a gradient's norm.
TOLERANCE = {"float32": (2e-6, 2e-6), "bfloat16": (0.03, 0.01)}


def draw(length, heads=2, groups=2, dim=32, dtype="float32", batch=3):
    keys = jax.random.split(jax.random.key(length), 4)
    shapes = [(batch, length, h, dim) for h in (heads, groups, groups, heads)]
    made = [jax.random.normal(*pair) for pair in zip(keys, shapes, strict=True)]
    return [x.astype(dtype) for x in made]


def compare(tensors, real, **call):
    """Outputs at real queries, and all gradients, of both kernels."""

    q, k, v, weight = tensors

    def total(q, k, v, implementation):
        out = attention(q, k, v, implementation=implementation, **call)
        real_out = jnp.where(real[..., None, None], out.astype(jnp.float32), 0)
        return (real_out * weight).sum(), (real_out, jnp.isfinite(out).all())

    run = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True), static_argnums=3)
    ours, (out, finite) = run(q, k, v, "splash")
    theirs, (expected, _) = run(q, k, v, "xla")
    outputs, gradients = TOLERANCE[str(q.dtype)]
    assert finite
    assert jnp.abs(out - expected).max() <= outputs
    for got, want in zip(ours, theirs, strict=True):
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        assert jnp.isfinite(got).all()
        assert jnp.linalg.norm(got - want) <= gradients * jnp.linalg.norm(want) + 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [2, 24, 65, 200])
def test_equals_xla_given_lengths(length, dtype):
    lengths = jnp.array([length, 1, length // 2])
    real = length_mask(lengths, length)
    compare(draw(length, dtype=dtype), real, lengths=lengths)


@pytest.mark.parametrize("dim", [64, 128])
def test_equals_xla_for_other_heads_and_masks(dim):
    mask = np.random.default_rng(0).random((3, 40)) < 0.6
    mask[2] = False
    compare(draw(40, dim=dim), jnp.asarray(mask), mask=jnp.asarray(mask))


@pytest.mark.parametrize("causal", [False, True])
def test_equals_xla_with_segments(causal):
    segments = np.repeat([[1, 2, 3, 0], [1, 1, 2, 2], [0, 0, 0, 0]], 50, axis=1)
    real = jnp.asarray(segments > 0)
    call = {"segments": jnp.asarray(segments), "causal": causal}
    compare(draw(200, heads=4), real, **call)


def test_equals_xla_without_padding_causal_and_scaled():
    call = {"causal": True, "scale": 0.3}
    compare(draw(140), jnp.ones((3, 140), bool), **call)


@pytest.mark.parametrize("causal", [False, True])
def test_equals_xla_for_fewer_queries_than_keys(causal):
    rows = slice(130, 200)
    q, k, v, weight = draw(200)
    lengths = jnp.array([200, 135, 130])
    real = length_mask(lengths, 200)[:, rows]
    call = {"lengths": lengths, "causal": causal, "queries": rows}
    compare((q[:, rows], k, v, weight[:, rows]), real, **call)


def test_is_chosen_on_tpu_where_it_applies_and_said_once(monkeypatch, caplog):
    monkeypatch.setattr(module, "has_tpu", lambda: True)
    module._log_choice.cache_clear()
    q, k, v, _ = draw(8)
    mask, window = jnp.ones((3, 8), bool), jnp.ones((8, 8), bool)
    with caplog.at_level(logging.INFO, "cdejax"):
        for _ in range(2):
            attention(q, k, v, mask=mask)
            attention(q, k, v, visible=window)
    assert [record.getMessage() for record in caplog.records] == [
        "attention runs on splash (float32, head dimension 32)",
        "attention runs on xla (float32, head dimension 32; splash attention takes no "
        "bias and no window)",
    ]
    with pytest.raises(ValueError, match="no bias and no window"):
        attention(q, k, v, visible=window, implementation="splash")


def test_gives_way_where_shard_map_checks_how_results_vary(monkeypatch):
    monkeypatch.setattr(module, "has_tpu", lambda: True)
    q, k, v, _ = draw(8, batch=8)
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((8,), ("data",), axis_types=auto)
    for checked in (True, False):
        sharded = jax.shard_map(
            lambda q, k, v: attention(q, k, v),
            mesh=mesh,
            in_specs=jax.P("data"),
            out_specs=jax.P("data"),
            check_vma=checked,
        )
        got = jax.jit(sharded)(q, k, v)
        want = attention(q, k, v, implementation="xla")
        np.testing.assert_allclose(got, want, atol=2e-6)
