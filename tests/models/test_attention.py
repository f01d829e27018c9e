"""Attention against a plain NumPy formula, and its masks."""

import logging

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from cdejax.models.kernels import attention as module
from cdejax.models.kernels import blocked
from cdejax.models.kernels.attention import attention, fused_kernel
from cdejax.models.kernels.padding import ALL, compact, length_mask


def qkv(batch=3, length=7, heads=2, dim=8, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (batch, length, heads, dim)) for key in keys]


def reference(q, k, v, mask):
    """Softmax attention in float64, one row, head and query at a time."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for b, t, h in np.ndindex(*q.shape[:3]):
        keep = np.asarray(mask[b])
        scores = k[b, keep, h] @ q[b, t, h] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, t, h] = weights @ v[b, keep, h] / weights.sum()
    return out


def test_equals_formula_under_masks_and_lengths():
    q, k, v = qkv()
    lengths = np.array([7, 1, 4])
    mask = np.asarray(length_mask(jnp.asarray(lengths), 7))
    expected = reference(q, k, v, mask)
    masked = attention(q, k, v, mask=jnp.asarray(mask))
    np.testing.assert_allclose(masked, expected, atol=2e-6)
    by_length = attention(q, k, v, lengths=jnp.asarray(lengths))
    np.testing.assert_array_equal(by_length, masked)
    holes = np.array([[1, 0, 1, 1, 0, 0, 1]] * 3, bool)
    out = attention(q, k, v, mask=jnp.asarray(holes))
    np.testing.assert_allclose(out, reference(q, k, v, holes), atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fully_masked_rows_stay_finite_with_their_gradients(dtype):
    q, k, v = (x.astype(dtype) for x in qkv())
    mask = jnp.zeros((3, 7), bool).at[1].set(True)

    def total(q, k, v):
        return attention(q, k, v, mask=mask).astype(jnp.float32).sum()

    value, gradients = jax.value_and_grad(total, argnums=(0, 1, 2))(q, k, v)
    assert np.isfinite(value)
    assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in gradients)


def test_refuses_contradictory_arguments():
    q, k, v = qkv()
    mask, lengths = jnp.ones((3, 7), bool), jnp.full(3, 7)
    with pytest.raises(ValueError, match="not both"):
        attention(q, k, v, mask=mask, lengths=lengths)
    with pytest.raises(ValueError, match="takes lengths"):
        attention(q, k, v, mask=mask, implementation="cudnn")


def test_segments_are_read_one_by_one():
    q, k, v = qkv()
    segments = np.array([[1, 1, 2, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1, 1], [0] * 7])
    out = attention(q, k, v, segments=jnp.asarray(segments))
    for row, column in np.argwhere(segments > 0):
        own = np.broadcast_to(segments[row] == segments[row, column], (3, 7))
        expected = reference(q, k, v, own)[row, column]
        np.testing.assert_allclose(out[row, column], expected, atol=2e-6)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [slice(1), slice(2, 5), slice(4, None)], ids=str)
def test_fewer_queries_read_what_they_do_among_all(rows, causal):
    q, k, v = qkv()
    lengths = jnp.array([7, 1, 4])
    whole = attention(q, k, v, lengths=lengths, causal=causal)
    call = {"lengths": lengths, "causal": causal, "queries": rows}
    part = attention(q[:, rows], k, v, **call)
    np.testing.assert_allclose(part, whole[:, rows], atol=1e-6)


def test_queries_must_be_as_many_as_their_positions():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="7 queries cannot stand at"):
        attention(q, k, v, queries=slice(3))


def test_cudnn_gives_way_where_it_must_and_says_why(monkeypatch, caplog):
    monkeypatch.setattr(module, "fused_kernel", lambda *_: True)
    module._log_choice.cache_clear()
    q, k, v = qkv()
    mask = jnp.ones((3, 7), bool)
    calls = [
        ({"mask": mask}, q, "compact a mask"),
        ({"segments": mask.astype(int)}, q, "even numbers"),
        ({"lengths": jnp.array([7, 3, 2])}, q, "even numbers"),
        ({"causal": True, "queries": slice(4, None)}, q[:, 4:], "first position"),
        ({"queries": slice(1)}, q[:, :1], "one query"),
    ]
    with caplog.at_level(logging.INFO, "cdejax"):
        for call, queries, _ in calls:
            attention(queries, k, v, **call)
    messages = [record.getMessage() for record in caplog.records]
    for message, (_, _, reason) in zip(messages, calls, strict=True):
        assert message.startswith("attention runs on xla (float32, head dimension 8")
        assert reason in message


def test_cudnn_is_chosen_for_narrow_types_and_fitting_heads_only(monkeypatch):
    assert not fused_kernel("bfloat16", 64)  # the tests run on CPU
    monkeypatch.setattr(module, "has_nvidia", lambda: True)
    assert fused_kernel("bfloat16", 64)
    assert fused_kernel("float16", 32)
    assert not fused_kernel("float32", 64)
    assert not fused_kernel("bfloat16", 36)
    assert not fused_kernel("bfloat16", 256)


def test_the_choice_is_logged_once(caplog):
    module._log_choice.cache_clear()
    with caplog.at_level(logging.INFO, "cdejax"):
        for _ in range(3):
            attention(*qkv())
    assert [r.getMessage() for r in caplog.records] == [
        "attention runs on blocked (float32, head dimension 8)"
    ]


def biased(length=8, heads=2):
    return jax.random.normal(jax.random.key(7), (heads, length, length))


WINDOW = np.abs(np.subtract.outer(np.arange(8), np.arange(8))) <= 2
READ = {
    "all, of another scale": {"scale": 1.0},
    "mask": {"mask": np.arange(8) % 4 < np.arange(4)[:, None]},
    "lengths": {"lengths": np.array([8, 1, 4, 7])},
    "segments": {"segments": np.array([[1, 1, 2, 2, 2, 3, 0, 0]] * 4)},
    "bias": {"bias": biased(), "lengths": np.array([8, 1, 4, 7])},
    "a bias a row": {"bias": jnp.stack([i * biased() for i in range(4)])},
    "window": {"visible": WINDOW, "lengths": np.array([8, 1, 4, 7])},
    "a window a row": {"visible": np.stack([WINDOW, ~WINDOW, WINDOW, WINDOW])},
    "causal": {"causal": True, "lengths": np.array([8, 1, 4, 7])},
    "later queries": {"causal": True, "queries": slice(4, None)},
}


def pulled(inputs, cotangent, *, bias=None, implementation, **call):
    """The result, and gradients of queries, keys, values and, if any, the bias."""

    def read(q, k, v, bias):
        q = q[:, call.get("queries", ALL)]
        return attention(q, k, v, bias=bias, implementation=implementation, **call)

    @jax.jit
    def both(inputs, bias, cotangent):
        out, pull = jax.vjp(read, *inputs, bias)
        return out, *jax.tree.leaves(pull(cotangent[:, : out.shape[1]]))

    return both(inputs, bias, cotangent)


@pytest.mark.parametrize(
    ("name", "rows", "heads"),
    [*((name, 1, 2) for name in READ), ("lengths", 2, 1), ("bias", 4, 2)],
)
def test_blocks_read_what_float64_does_with_its_gradients(
    name, rows, heads, monkeypatch
):
    monkeypatch.setattr(blocked, "_CACHE", rows * 4 * 2 * 8 * 8)
    q, k, v = qkv(batch=4, length=8)
    inputs = q, k[:, :, :heads], v[:, :, :heads]
    cotangent = qkv(batch=4, length=8, seed=1)[0]
    found = pulled(inputs, cotangent, **READ[name], implementation="blocked")
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), (inputs, cotangent))
        expected = pulled(*wide, **READ[name], implementation="xla")
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize(
    ("batch", "row_bytes", "rows"), [(6, 1 << 20, 3), (7, 1 << 20, 1), (4, 1 << 23, 1)]
)
def test_blocks_divide_the_batch_and_fit_the_cache(batch, row_bytes, rows):
    assert blocked._rows_at_once(batch, row_bytes) == rows


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1))
@settings(max_examples=30, deadline=None)
def test_compaction_brings_real_tokens_to_the_front_in_order(rows):
    mask = np.array(rows)
    order, inverse = (np.asarray(x) for x in compact(jnp.asarray(mask)))
    steps = np.broadcast_to(np.arange(6), mask.shape)
    for row, (moved, back) in enumerate(zip(order, inverse, strict=True)):
        real = mask[row].sum()
        assert moved[:real].tolist() == steps[row][mask[row]].tolist()
        assert moved[back].tolist() == list(range(6))
