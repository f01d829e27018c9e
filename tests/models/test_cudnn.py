"""cuDNN's fused attention against XLA's, on an NVIDIA card.

Run with `JAX_PLATFORMS=cuda pytest -m gpu tests/models/test_cudnn.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import (
    Bert,
    BertConfig,
    ContextualEncoder,
    NomicBert,
    NomicBertConfig,
)
from cdejax.models.kernels.attention import attention, fused_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not fused_kernel("bfloat16", 64), reason="no cuDNN attention here"
    ),
]
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}


def unit(x):
    x = np.asarray(x, np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("head_dim", [32, 64])
def test_equals_xla_with_gradients_and_stays_finite(head_dim):
    keys = jax.random.split(jax.random.key(0), 4)
    shape = (6, 128, 4, head_dim)
    q, k, v, weight = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys)
    lengths = jnp.array([128, 1, 64, 17, 0, 3])
    real = (jnp.arange(128) < lengths[:, None])[..., None, None]

    def total(q, k, v, implementation):
        out = attention(q, k, v, lengths=lengths, implementation=implementation)
        return jnp.where(real, out * weight, 0).astype(jnp.float32).sum(), out

    run = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True), static_argnums=3)
    (ours, out), (theirs, expected) = run(q, k, v, "cudnn"), run(q, k, v, "xla")
    assert jnp.isfinite(out.astype(jnp.float32)).all()
    gap = jnp.where(real, out - expected, 0).astype(jnp.float32)
    assert jnp.abs(gap).max() < 0.03
    for got, want in zip(ours, theirs, strict=True):
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        assert jnp.isfinite(got).all()
        assert jnp.linalg.norm(got - want) < 0.02 * jnp.linalg.norm(want)


def compare(tensors, real, **call):
    """Outputs at real queries, and all gradients, of cuDNN and XLA."""

    q, k, v, weight = tensors

    def total(q, k, v, implementation):
        out = attention(q, k, v, implementation=implementation, **call)
        out_real = jnp.where(real[..., None, None], out, 0).astype(jnp.float32)
        return (out_real * weight).sum(), (out_real, out)

    run = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True), static_argnums=3)
    ours, (out, everywhere) = run(q, k, v, "cudnn")
    theirs, (expected, _) = run(q, k, v, "xla")
    assert jnp.isfinite(everywhere.astype(jnp.float32)).all()
    assert jnp.abs(out - expected).max() < 0.03
    for got, want in zip(ours, theirs, strict=True):
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        assert jnp.isfinite(got).all()
        assert jnp.linalg.norm(got - want) < 0.02 * jnp.linalg.norm(want)


def draw(length, heads=4, groups=4, dim=64):
    keys = jax.random.split(jax.random.key(1), 4)
    shapes = [(4, length, h, dim) for h in (heads, groups, groups, heads)]
    return [
        jax.random.normal(key, shape, jnp.bfloat16)
        for key, shape in zip(keys, shapes, strict=True)
    ]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_segments_equal_xla(causal, groups):
    blocks = [[1, 2, 3, 0], [1, 1, 1, 2], [1, 0, 0, 0], [0, 0, 0, 0]]
    segments = jnp.repeat(jnp.array(blocks), 32, axis=1)
    call = {"segments": segments, "causal": causal}
    compare(draw(128, groups=groups), segments > 0, **call)


@pytest.mark.parametrize("rows", [slice(2), slice(58), slice(72, None)], ids=str)
def test_fewer_queries_than_keys_equal_xla_by_length(rows):
    q, k, v, weight = draw(128)
    lengths = jnp.array([128, 73, 90, 0])
    real = (jnp.arange(128) < lengths[:, None])[:, rows]
    compare((q[:, rows], k, v, weight[:, rows]), real, lengths=lengths, queries=rows)


def test_odd_numbers_of_positions_get_gradients_from_xla():
    q, k, v, _ = draw(127)
    lengths = jnp.array([127, 73, 90, 0])

    def total(q, implementation):
        read = attention(q, k, v, lengths=lengths, implementation=implementation)
        return read.astype(jnp.float32).sum()

    np.testing.assert_array_equal(
        *(jax.grad(total)(q, kernel) for kernel in (None, "xla"))
    )


def test_fewer_queries_than_keys_equal_xla_by_segments_and_without_padding():
    rows = slice(72, None)
    q, k, v, weight = draw(128)
    segments = jnp.repeat(jnp.array([[1, 2, 3, 0]] * 4), 32, axis=1)
    own = segments[:, rows] > 0
    compare((q[:, rows], k, v, weight[:, rows]), own, segments=segments, queries=rows)
    compare((q[:, rows], k, v, weight[:, rows]), jnp.ones_like(own), queries=rows)


def test_causal_queries_from_the_first_on_equal_xla():
    q, k, v, weight = draw(128)
    lengths = jnp.array([128, 73, 10, 1])
    real = (jnp.arange(128) < lengths[:, None])[:, :40]
    call = {"lengths": lengths, "causal": True, "queries": slice(40)}
    compare((q[:, :40], k, v, weight[:, :40]), real, **call)


@pytest.mark.parametrize(
    ("cls", "config"), [(Bert, BertConfig), (NomicBert, NomicBertConfig)]
)
def test_packed_texts_agree_with_texts_alone(cls, config):
    encoder = cls(config(**SIZES), nnx.Rngs(0))
    rng = np.random.default_rng(0)
    lengths = [30, 7, 1, 20]
    ids, segments, positions = (np.zeros((2, 64), np.int32) for _ in range(3))
    ends = np.cumsum(lengths)
    for number, (length, end) in enumerate(zip(lengths, ends, strict=True), 1):
        where = slice(end - length, end)
        ids[:, where] = rng.integers(1, 1000, (2, length))
        segments[:, where], positions[:, where] = number, np.arange(length)
    spans = zip(ends - lengths, ends, strict=True)
    alone = [encoder(ids[:, start:end]) for start, end in spans]
    encoder.dtype = jnp.dtype(jnp.bfloat16)
    embeddings = encoder.embed(ids, positions)
    got = encoder.encode(embeddings, segments=segments, positions=positions)
    want = np.concatenate(alone, axis=1)
    assert (unit(got[:, : ends[-1]]) * unit(want)).sum(-1).min() > 0.999


@pytest.mark.parametrize(
    ("cls", "config"), [(Bert, BertConfig), (NomicBert, NomicBertConfig)]
)
def test_masks_and_lengths_agree_with_float32(cls, config):
    encoder = cls(config(**SIZES), nnx.Rngs(0))
    model = ContextualEncoder.from_encoder(encoder, nnx.Rngs(1), context_size=32)
    rng = np.random.default_rng(0)
    lengths = np.array([40, 1, 20, 33, 7])
    mask = np.arange(40) < lengths[:, None]
    ids = rng.integers(1, 1000, mask.shape) * mask
    shift = [(row, 40 - length) for row, length in enumerate(lengths)]
    left = np.stack([np.roll(ids[row], by) for row, by in shift])
    left_mask = np.stack([np.roll(mask[row], by) for row, by in shift])
    context = rng.normal(size=(32, 256)).astype(np.float32)
    keep = rng.random(32) < 0.5
    expected = unit(model.second_stage(ids, mask, context))
    expected_kept = unit(model.second_stage(ids, mask, context, keep))
    for part in (model.backbone, model.first.encoder):
        part.dtype = jnp.dtype(jnp.bfloat16)
    for got, want in (
        (model.second_stage(ids, mask, context), expected),
        (model.second_stage(left, left_mask, context), expected),
        (model.second_stage(ids, context=context, lengths=lengths), expected),
        (model.second_stage(left, left_mask, context, keep), expected_kept),
        (model.second_stage(ids, None, context, keep, lengths=lengths), expected_kept),
    ):
        assert (unit(got) * want).sum(-1).min() > 0.999
