"""The contextual encoder: parity with NomicBertModel, and what context may change."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import (
    BiEncoder,
    ContextualConfig,
    ContextualEncoder,
    NomicBertConfig,
    make_encoder,
    parameter_count,
)
from cdejax.models import encoder as encoder_module
from cdejax.models.encoder import copy_encoder
from tests.models.oracles import (
    TOLERANCE,
    normalised,
    padded,
    run,
    run_patched,
    sharpen,
    torch,
)

C, SOFT = 12, 8
LENGTHS = [14, 5, 9]


@pytest.fixture(scope="module", params=["bert", "mpnet", "nomic_bert"])
def encoder(request, pairs):
    """Each way of telling positions once: learned, as biases, rotary."""
    return sharpen(pairs(request.param)[0])


@pytest.fixture(scope="module")
def model(encoder):
    config = ContextualConfig(context_size=C, sequence_dropout=0.1)
    return contextual(encoder, config)


def second_stage(model, *args, **kwargs):
    return run(model, *args, method="second_stage", **kwargs)


def contextual(encoder, config):
    model = ContextualEncoder(
        config, copy_encoder(encoder), copy_encoder(encoder), nnx.Rngs(1)
    )
    # Nulls of the size of real tokens, so that a forgotten one shows.
    assert model.null is not None
    model.null[...] = model.null[...] * 5
    return model


@pytest.fixture(scope="module")
def context():
    return np.random.default_rng(5).normal(size=(C, 64)).astype(np.float32)


def test_second_stage_equals_transformers_nomic_bert(nomic, context):
    encoder, oracle = nomic
    model = contextual(encoder, ContextualConfig(context_size=C))
    for size in (C, 5):
        ids, mask = padded(LENGTHS, 14)
        words = np.asarray(encoder.word[...])[ids]
        row = np.asarray(encoder.token_type[0])
        front = np.concatenate([context[:size], model.soft_prompt()]) - row
        front = np.broadcast_to(front, (len(ids), *front.shape))
        positions = [0] * size + list(range(C, C + SOFT + 14))
        full = np.concatenate([np.ones((len(ids), size + SOFT)), mask], axis=1)
        with torch.no_grad():
            out = oracle(
                inputs_embeds=torch.tensor(np.concatenate([front, words], axis=1)),
                attention_mask=torch.tensor(full).long(),
                position_ids=torch.tensor([positions]),
            )
        states = out.last_hidden_state.numpy()[:, size + SOFT :]
        pooled = np.stack([s[m].mean(0) for s, m in zip(states, mask, strict=True)])
        expected = pooled + projection(model.output_projection, pooled)
        got = second_stage(model, ids, mask, context[:size])
        assert np.abs(np.asarray(got) - expected).max() <= TOLERANCE


def projection(head, x):
    first, last = head.first, head.last
    y = np.maximum(x @ np.asarray(first.kernel[...]) + np.asarray(first.bias[...]), 0)
    return y @ np.asarray(last.kernel[...]) + np.asarray(last.bias[...])


def test_soft_prompt_is_linear_relu_linear_of_ones(model):
    expected = projection(model.prompt_projection, np.ones(model.dim))
    expected = expected.reshape(SOFT, model.dim)
    np.testing.assert_allclose(model.soft_prompt(), expected, atol=1e-6)


def test_output_projection_without_residual(encoder, context):
    config = ContextualConfig(context_size=C)
    with_residual = contextual(encoder, config)
    without = contextual(encoder, dataclasses.replace(config, output_residual=False))
    ids, mask = padded(LENGTHS, 14)
    pooled = np.asarray(second_stage(with_residual, ids, mask, context)) - np.asarray(
        second_stage(without, ids, mask, context)
    )
    expected = projection(without.output_projection, pooled)
    got = second_stage(without, ids, mask, context)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_the_order_of_the_context_does_not_count(model, context):
    ids, mask = padded(LENGTHS, 14)
    expected = normalised(second_stage(model, ids, mask, context))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(C)
        got = normalised(second_stage(model, ids, mask, context[order]))
        assert np.abs(got - expected).max() <= 1e-5


@pytest.mark.parametrize("kind", ["modernbert", "t5"])
def test_newer_encoders_read_their_context_in_any_order(pairs, kind, context):
    encoder = sharpen(pairs(kind)[0])
    model = ContextualEncoder.from_encoder(encoder, nnx.Rngs(0), context_size=C)
    ids, mask = padded(LENGTHS, 14)
    expected = normalised(second_stage(model, ids, mask, context))
    order = np.random.default_rng(0).permutation(C)
    left = padded(LENGTHS, 14, side="left")
    for same in (
        second_stage(model, ids, mask, context[order]),
        second_stage(model, *left, context),
    ):
        assert np.abs(normalised(same) - expected).max() <= 1e-5
    for other in (-context, context[:3]):
        changed = normalised(second_stage(model, ids, mask, other))
        assert np.abs(changed - expected).max() > 1e-3


def test_the_order_of_the_text_counts(model, context):
    ids, _ = padded([14], 14)
    expected = normalised(second_stage(model, ids, context=context))
    turned = normalised(second_stage(model, ids[:, ::-1].copy(), context=context))
    assert np.abs(turned - expected).max() > 1e-2


def test_the_context_counts(model, context):
    ids, mask = padded(LENGTHS, 14)
    outs = [
        normalised(second_stage(model, ids, mask, x))
        for x in (context, context[:3], context[3:6], None)
    ]
    for i, one in enumerate(outs):
        for other in outs[i + 1 :]:
            assert np.abs(one - other).max() > 1e-3


def test_masked_context_equals_sliced(model, context):
    ids, mask = padded(LENGTHS, 14)
    keep = np.zeros(C, bool)
    keep[[1, 4, 5, 10]] = True
    expected = second_stage(model, ids, mask, context[keep])
    garbage = np.where(keep[:, None], context, 1e3).astype(np.float32)
    got = second_stage(model, ids, mask, garbage, keep)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    rows = np.stack([keep, ~keep, np.ones(C, bool)])
    got = second_stage(
        model, ids, context=context, context_mask=rows, lengths=LENGTHS_A
    )
    for row, kept in enumerate(rows):
        alone = second_stage(model, ids, mask, context[kept])
        np.testing.assert_allclose(got[row], alone[row], atol=1e-5)


LENGTHS_A = np.array(LENGTHS)


def test_independent_of_padding_and_batch_mates(model, context):
    ids, mask = padded(LENGTHS, 14)
    expected = np.asarray(second_stage(model, ids, mask, context))
    for width, side in ((14, "left"), (25, "right"), (25, "left")):
        wide, wide_mask = padded(LENGTHS, width, side=side)
        got = second_stage(model, wide, wide_mask, context)
        np.testing.assert_allclose(got, expected, atol=1e-5)
    by_length = second_stage(model, ids, context=context, lengths=LENGTHS_A)
    np.testing.assert_allclose(by_length, expected, atol=1e-5)
    alone = second_stage(model, ids[1:2, : LENGTHS[1]], context=context)
    np.testing.assert_allclose(alone[0], expected[1], atol=1e-5)


def test_compacted_masks_change_nothing(model, context, monkeypatch):
    ids, mask = padded(LENGTHS, 14, side="left")
    keep = np.arange(C) % 3 > 0
    expected = np.asarray(second_stage(model, ids, mask, context, keep))
    monkeypatch.setattr(encoder_module, "fused_kernel", lambda *_: True)
    got = run_patched(model, ids, mask, context, keep, method="second_stage")
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_an_own_context_for_each_text(model, context):
    ids, mask = padded(LENGTHS, 14)
    own = np.stack([context[:4], context[4:8], context[8:]])
    got = second_stage(model, ids, mask, own)
    for row in range(3):
        alone = second_stage(model, ids, mask, own[row])
        np.testing.assert_allclose(got[row], alone[row], atol=1e-5)


def test_dropped_vectors_become_the_null_vector(model, context):
    ids, mask = padded(LENGTHS, 14)
    dropped = np.random.default_rng(0).random((3, C)) < 0.4
    null = np.asarray(model.null[...])
    own = np.where(dropped[..., None], null, context).astype(np.float32)
    expected = np.asarray(second_stage(model, ids, mask, own))
    got = second_stage(model, ids, mask, context, dropped=dropped)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    all_null = second_stage(model, ids, mask, context, dropped=np.ones((3, C), bool))
    none = second_stage(model, ids, mask, None)
    np.testing.assert_allclose(none, all_null, atol=1e-6)
    empty = np.zeros((0, model.dim), np.float32)
    none = second_stage(model, ids, mask, empty)
    np.testing.assert_allclose(none, all_null, atol=1e-6)


def test_impossible_contexts_are_refused(model, context):
    ids, mask = padded(LENGTHS, 14)
    with pytest.raises(ValueError, match="context of 13 vectors"):
        model.second_stage(ids, mask, np.zeros((C + 1, model.dim), np.float32))
    with pytest.raises(ValueError, match="size 3, but the model takes at most 12"):
        model.second_stage(ids, mask, np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match="no context at all"):
        model.second_stage(ids, mask, context, np.zeros(C, bool))
    with pytest.raises(ValueError, match="start at 1"):
        contextual(model.backbone, ContextualConfig(context_size=0))


def test_starts_as_pooling_of_both_stages(encoder, context):
    model = ContextualEncoder.from_encoder(
        encoder, nnx.Rngs(0), context_size=C, first_stage_layers=1
    )
    ids, mask = padded(LENGTHS, 14)
    shorter = BiEncoder(copy_encoder(encoder, 1))
    np.testing.assert_array_equal(model.first_stage(ids, mask), shorter(ids, mask))
    hidden = []
    backbone_encode = model.backbone.encode

    def spy(*args, **kwargs):
        hidden.append(np.asarray(backbone_encode(*args, **kwargs)))
        return hidden[-1]

    object.__setattr__(model.backbone, "encode", spy)
    got = model.second_stage(ids, mask, context)
    weights = mask[..., None] / mask.sum(1)[:, None, None]
    pooled = (hidden[0] * weights).sum(1)
    np.testing.assert_allclose(got, pooled, atol=1e-6)
    assert model.config.first_stage_residual
    assert model.backbone is not encoder
    assert model.first.encoder is not model.backbone


def test_all_parameters_get_gradients_inside_shard_map(encoder):
    short, config = copy_encoder(encoder, 1), ContextualConfig(context_size=C)
    model = contextual(short, config)
    ids, mask = padded([8] * 8, 8)
    graph, state = nnx.split(model, nnx.Param)
    target = np.random.default_rng(0).normal(size=(8, model.dim)).astype(np.float32)

    def loss(state, ids, mask, target):
        model = nnx.merge(graph, state)
        context = model.first_stage(ids, mask)
        dropped = jnp.arange(ids.shape[1])[None, : len(context)] == 0
        out = model.second_stage(ids, mask, context, dropped=dropped)
        return (out * target).sum()

    def local(state, *batch):
        state = jax.tree.map(lambda x: jax.lax.pcast(x, "data", to="varying"), state)
        gradients = jax.grad(jax.checkpoint(loss))(state, *batch)
        return jax.lax.psum(gradients, "data")

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=auto, devices=jax.devices()[:2])
    specs = (jax.P(), jax.P("data"), jax.P("data"), jax.P("data"))
    sharded = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=jax.P())
    gradients = jax.jit(sharded)(state, ids, mask, target)
    whole = jax.jit(jax.grad(loss))
    halves = [
        whole(state, ids[s], mask[s], target[s]) for s in (slice(0, 4), slice(4, 8))
    ]
    expected = jax.tree.map(lambda a, b: a + b, *halves)
    norms = jax.tree.map(lambda x: float(jnp.linalg.norm(x)), expected)
    total = np.sqrt(sum(n**2 for n in jax.tree.leaves(norms)))
    for got, want, norm in zip(
        *map(jax.tree.leaves, (gradients, expected, norms)), strict=True
    ):
        gap = float(jnp.linalg.norm(got - want))
        assert gap <= 1e-5 * max(norm, 1e-3 * total)
        assert norm > 0


def test_bfloat16_gives_float32_embeddings_close_by(encoder, context):
    wide = contextual(encoder, ContextualConfig(context_size=C))
    narrow = contextual(encoder, ContextualConfig(context_size=C))
    narrow.backbone.dtype = jnp.dtype(jnp.bfloat16)
    ids, mask = padded(LENGTHS, 14)
    got = second_stage(narrow, ids, mask, context)
    assert got.dtype == jnp.float32
    expected = normalised(second_stage(wide, ids, mask, context))
    assert (normalised(got) * expected).sum(-1).min() > 0.999


def test_parameter_counts_of_the_published_size():
    def build():
        rngs, config = nnx.Rngs(0), NomicBertConfig()
        stages = make_encoder(config, rngs), make_encoder(config, rngs)
        return ContextualEncoder(ContextualConfig(), *stages, rngs)

    count = parameter_count(build)
    assert count == 281_141_760
    assert count - NomicBertConfig().hidden_size == 281_140_992
    assert parameter_count(lambda: make_encoder(NomicBertConfig(), nnx.Rngs(0))) == (
        136_731_648
    )


def test_stages_of_different_size_are_refused(encoder):
    other = make_encoder(
        dataclasses.replace(encoder.config, hidden_size=32), nnx.Rngs(0)
    )
    with pytest.raises(ValueError, match="sizes differ: 32 and 64"):
        ContextualEncoder(ContextualConfig(), other, encoder, nnx.Rngs(0))
