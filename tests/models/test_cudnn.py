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
from cdejax.models.attention import attention, fused_kernel

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
