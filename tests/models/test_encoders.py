"""Encoders against transformers' torch models on equal weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import Bert, BertConfig, NomicBert
from cdejax.models import encoder as encoder_module
from cdejax.models.encoder import copy_encoder
from tests.models.oracles import (
    TOLERANCE,
    biencoder,
    hidden,
    padded,
    run,
    run_patched,
    transformers,
)


def difference(ours, theirs, mask):
    return np.abs(np.asarray(ours) - theirs)[mask].max()


@pytest.mark.parametrize("width", [1, 24, 65])
@pytest.mark.parametrize("side", ["right", "left"])
def test_parity_with_transformers(pair, width, side):
    encoder, oracle = pair
    lengths = [width, max(1, width // 2), max(1, width - 3)]
    ids, mask = padded(lengths, width, side=side, seed=width)
    expected = hidden(oracle, ids, mask)
    assert difference(run(encoder, ids, mask), expected, mask) <= TOLERANCE
    if side == "right":
        by_length = run(encoder, ids, lengths=np.array(lengths))
        assert difference(by_length, expected, mask) <= TOLERANCE


def test_no_mask_means_all_tokens_are_real(pair):
    encoder, oracle = pair
    ids, mask = padded([9, 9], 9)
    expected = hidden(oracle, ids, mask)
    assert difference(run(encoder, ids), expected, mask) <= TOLERANCE


def test_parity_with_holes_in_the_mask(pair):
    encoder, oracle = pair
    ids, mask = padded([12, 12], 12)
    mask[:, [2, 5, 6]] = False
    expected = hidden(oracle, ids, mask)
    assert difference(run(encoder, ids, mask), expected, mask) <= TOLERANCE


def test_parity_with_real_weights(minilm):
    model = biencoder(minilm)
    oracle = transformers.BertModel.from_pretrained(minilm).eval()
    ids, mask = padded([40, 3, 17], 40, vocab=30000)
    expected = hidden(oracle, ids, mask)
    assert difference(run(model.encoder, ids, mask), expected, mask) <= TOLERANCE


def test_rows_and_windows_without_a_real_token_stay_finite(encoder):
    ids, mask = padded([4, 30, 4], 30, side="left")
    mask[2] = False
    graph, state = nnx.split(encoder)

    @jax.jit
    @jax.grad
    def gradients(state):
        out = nnx.merge(graph, state)(ids, mask)
        return jnp.square(out[:2]).sum()

    assert np.isfinite(np.asarray(run(encoder, ids, mask))).all()
    for gradient in jax.tree.leaves(gradients(state)):
        assert np.isfinite(np.asarray(gradient)).all()


def test_compacted_masks_change_nothing(encoder, monkeypatch):
    ids, _ = padded([12, 12, 12, 12], 12)
    mask = np.ones((4, 12), bool)
    mask[0, :5], mask[1, 7:], mask[2, [0, 3, 4]] = False, False, False
    plain = run(encoder, ids, mask)
    monkeypatch.setattr(encoder_module, "fused_kernel", lambda *_: True)
    compacted = run_patched(encoder, ids, mask)
    assert difference(compacted, np.asarray(plain), mask) <= 2e-6


def test_works_split_inside_jit_checkpoint_and_shard_map(encoder):
    ids, mask = padded([8, 5, 3, 8, 1, 2, 7, 6], 8)
    graph, state = nnx.split(encoder)

    def forward(state, ids, mask):
        return nnx.merge(graph, state)(ids, mask)

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((8,), ("data",), axis_types=auto)
    spec = jax.P("data")
    sharded = jax.shard_map(
        jax.checkpoint(forward),
        mesh=mesh,
        in_specs=(jax.P(), spec, spec),
        out_specs=spec,
    )
    out = jax.jit(sharded)(state, ids, mask)
    assert difference(out, np.asarray(run(encoder, ids, mask)), mask) <= 2e-6


def test_parameters_cast_outside_are_used_as_they_are(encoder):
    ids, mask = padded([8, 5], 8)
    graph, state = nnx.split(encoder)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)
    out = run(nnx.merge(graph, narrow), ids, mask)
    assert out.dtype == jnp.float32
    assert 0 < difference(out, np.asarray(run(encoder, ids, mask)), mask) < 0.2


def test_bfloat16_activations_stay_close(encoder):
    ids, mask = padded([20, 9], 20)
    wide = np.asarray(run(encoder, ids, mask))
    narrow_encoder = copy_encoder(encoder)
    narrow_encoder.dtype = jnp.dtype(jnp.bfloat16)
    narrow = run(narrow_encoder, ids, mask)
    assert narrow.dtype == jnp.bfloat16
    params = nnx.state(narrow_encoder, nnx.Param)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    gap = np.abs(np.asarray(narrow, np.float32) - wide)[mask]
    assert gap.max() < 0.1
    assert gap.mean() < 0.015


def test_a_copy_is_independent_and_may_be_shorter(encoder):
    ids, _ = padded([8, 8], 8)
    copy = copy_encoder(encoder, 1)
    assert copy.config.num_hidden_layers == len(copy.layers) == 1
    assert len(encoder.layers) == 2
    before = np.asarray(run(encoder, ids))
    copy.word[...] = jnp.zeros_like(copy.word[...])
    np.testing.assert_array_equal(run(encoder, ids), before)
    buffer = copy.norm.scale[...].unsafe_buffer_pointer()
    assert buffer != encoder.norm.scale[...].unsafe_buffer_pointer()
    with pytest.raises(ValueError, match="1 to 2"):
        copy_encoder(encoder, 3)


def test_ids_outside_the_vocabulary_are_refused_or_loud(encoder):
    with pytest.raises(ValueError, match="run from 3 to 96, but the vocabulary has 96"):
        encoder(np.array([[3, 96]]))
    traced = jax.jit(lambda ids: encoder(ids))(np.array([[3, 96]]))
    assert np.isnan(np.asarray(traced)).any()


def test_bert_refuses_more_tokens_than_positions():
    bert = Bert(BertConfig(50, 16, 1, 2, 32, max_position_embeddings=8), nnx.Rngs(0))
    assert bert.embed(np.zeros((1, 8), int)).shape == (1, 8, 16)
    with pytest.raises(ValueError, match="9 tokens, but this Bert has 8 positions"):
        bert(np.zeros((1, 9), int))


def test_token_order_matters(encoder):
    ids, _ = padded([10], 10)
    ours = np.asarray(run(encoder, ids))
    turned = np.asarray(run(encoder, ids[:, ::-1].copy()))[:, ::-1]
    assert np.abs(ours - turned).max() > 1e-2


def test_positions_reach_the_rotary_encoder_only_relatively(nomic):
    encoder, _ = nomic
    assert isinstance(encoder, NomicBert)
    ids, mask = padded([10, 10], 10)
    embeddings = encoder.embed(ids)
    where = np.arange(10) + 37
    moved = run(encoder, embeddings, method="encode", positions=where)
    assert difference(moved, np.asarray(run(encoder, ids)), mask) <= TOLERANCE
