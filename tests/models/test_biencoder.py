"""Biencoders: independent of padding and batch mates, harmless at the start."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import BiEncoder
from cdejax.models.encoder import copy_encoder
from cdejax.models.layers import Head
from tests.models.oracles import normalised, padded, run, sharpen


def test_independent_of_padding_and_batch_mates(pair):
    independent(BiEncoder(sharpen(pair[0])))


@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_single_tokens_are_independent_of_padding_too(nomic, pooling):
    independent(BiEncoder(nomic[0], pooling))


def independent(model):
    lengths = [11, 4, 1, 7]
    ids, mask = padded(lengths, 11)
    expected = np.asarray(run(model, ids, mask))
    for width, side in ((11, "left"), (32, "right"), (32, "left")):
        wide, wide_mask = padded(lengths, width, side=side)
        np.testing.assert_allclose(run(model, wide, wide_mask), expected, atol=1e-5)
    by_length = run(model, padded(lengths, 16)[0], lengths=np.array(lengths))
    np.testing.assert_allclose(by_length, expected, atol=1e-5)
    alone = run(model, ids[1:2, :4])
    np.testing.assert_allclose(alone[0], expected[1], atol=1e-5)


def test_mean_pooling_is_the_formula(encoder):
    ids, mask = padded([9, 4], 9)
    hidden = np.asarray(run(encoder, ids, mask))
    expected = np.stack([h[m].mean(0) for h, m in zip(hidden, mask, strict=True)])
    np.testing.assert_allclose(run(BiEncoder(encoder), ids, mask), expected, atol=1e-6)


def test_head_is_linear_gelu_linear(encoder):
    from scipy.special import erf

    model = BiEncoder(encoder, head="mlp", rngs=nnx.Rngs(0), head_sizes=(40, 24))
    assert model.dim == 24
    ids, mask = padded([9, 4], 9)
    x = np.asarray(run(BiEncoder(encoder), ids, mask), np.float64)
    assert isinstance(model.head, Head)
    first, last = model.head.first, model.head.last
    assert first.bias is not None
    assert last.bias is not None
    y = x @ np.asarray(first.kernel[...]) + np.asarray(first.bias[...])
    y = y * (1 + erf(y / np.sqrt(2))) / 2
    y = y @ np.asarray(last.kernel[...]) + np.asarray(last.bias[...])
    np.testing.assert_allclose(run(model, ids, mask), y, atol=1e-5)


def test_a_start_from_a_trained_encoder_is_its_pooling(encoder):
    ids, mask = padded([9, 4], 9)
    plain = run(BiEncoder(encoder), ids, mask)
    start = BiEncoder.from_encoder(encoder, head="mlp", rngs=nnx.Rngs(0))
    assert isinstance(start.head, Head)
    assert start.head.residual
    np.testing.assert_array_equal(run(start, ids, mask), plain)
    random = BiEncoder(encoder, head="mlp", rngs=nnx.Rngs(0))
    assert np.abs(np.asarray(run(random, ids, mask)) - np.asarray(plain)).max() > 0.1


def test_a_head_without_residual_cannot_start_as_the_identity(encoder):
    model = BiEncoder(encoder, head="mlp", rngs=nnx.Rngs(0))
    assert isinstance(model.head, Head)
    with pytest.raises(ValueError, match="without a residual"):
        model.head.make_identity()


def test_bfloat16_gives_float32_embeddings_close_by(encoder):
    ids, mask = padded([20, 9], 20)
    wide = normalised(run(BiEncoder(encoder), ids, mask))
    narrow_encoder = copy_encoder(encoder)
    narrow_encoder.dtype = jnp.dtype(jnp.bfloat16)
    narrow = run(BiEncoder(narrow_encoder), ids, mask)
    assert narrow.dtype == jnp.float32
    assert (normalised(narrow) * wide).sum(-1).min() > 0.999


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "lse"}, "'lse' is not one of"),
        ({"head": "linear"}, "'linear' is not one of"),
        ({"head": "mlp"}, "needs rngs"),
    ],
)
def test_impossible_settings_are_refused(encoder, arguments, message):
    with pytest.raises(ValueError, match=message):
        BiEncoder(encoder, **arguments)
