"""States of some positions only, and rows with a common front: what is saved, exactly.

The reference is the same encoder computing everything.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import BiEncoder, ContextualConfig, ContextualEncoder
from cdejax.models import encoder as encoder_module
from cdejax.models.encoder import copy_encoder
from cdejax.models.layers import Linear
from cdejax.models.pooling import pool, token_mask
from tests.models.oracles import padded, run, sharpen

LENGTHS = [17, 5, 9]
C, SOFT = 12, 8


def flops(function, *args):
    costs = jax.jit(function).lower(*args).compile().cost_analysis()
    assert costs is not None
    return costs["flops"]


def forms(width):
    ids, mask = padded(LENGTHS, width)
    lengths = np.array(LENGTHS)
    left, left_mask = padded(LENGTHS, width, side="left")
    segments = np.where(mask, 1 + (np.arange(width) > 6), 0)
    yield ids, {}
    yield ids, {"lengths": lengths}
    yield ids, {"segments": segments}
    yield left, {"mask": left_mask}


@pytest.mark.parametrize(
    ("form", "outputs"),
    [
        (0, slice(3, 8)),
        (1, slice(1)),
        (1, slice(9, None)),
        (2, slice(3, 8)),
        (3, slice(-4, None)),
    ],
    ids=str,
)
def test_chosen_positions_have_the_states_of_the_whole(encoder, form, outputs):
    ids, padding = list(forms(17))[form]
    graph, state = nnx.split(encoder)

    @jax.jit
    def both(state):
        model = nnx.merge(graph, state)
        embeddings = model.embed(ids)
        whole = model.encode(embeddings, **padding)[:, outputs]
        return whole, model.encode(embeddings, outputs=outputs, **padding)

    whole, part = both(state)
    assert part.shape == whole.shape
    np.testing.assert_allclose(part, whole, atol=1e-6 * np.abs(whole).max())


def test_gradients_are_those_of_the_whole(encoder):
    outputs = slice(9, None)
    ids, padding = list(forms(17))[1]
    graph, state = nnx.split(encoder)
    real = np.arange(17) < padding["lengths"][:, None]
    weight = np.random.default_rng(0).normal(size=(3, 17, encoder.hidden_size))
    weight = (weight * real[..., None])[:, outputs]

    def total(state, whole):
        model = nnx.merge(graph, state)
        chosen = {} if whole else {"outputs": outputs}
        hidden = model.encode(model.embed(ids), **padding, **chosen)
        return ((hidden[:, outputs] if whole else hidden) * weight).sum()

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    close(gradient(state, False), gradient(state, True))


def close(got, want, share=1e-5):
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    size = np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in want))
    for ours, theirs in zip(got, want, strict=True):
        least = max(float(jnp.linalg.norm(theirs.ravel())), 1e-3 * size)
        assert float(jnp.linalg.norm((ours - theirs).ravel())) <= share * least


def last_layer_flops(encoder, batch, length, chosen):
    """Products of the last layer that `length - chosen` positions no longer need."""
    layer, head = encoder.layers[-1], encoder.head_dim
    inner = encoder.config.num_attention_heads * head
    linear = [part for _, part in nnx.iter_modules(layer) if isinstance(part, Linear)]
    products = sum(part.kernel[...].size for part in linear)
    # Keys and values are still those of all positions.
    products -= layer.attention.qkv.kernel[...].size
    products += encoder.hidden_size * inner
    attention = 2 * length * inner
    return 2 * batch * (length - chosen) * (products + attention)


def test_the_last_layer_does_no_more_than_it_must(encoder):
    batch, length, chosen = 3, 32, 8
    graph, state = nnx.split(encoder)
    x = jnp.ones((batch, length, encoder.hidden_size))

    def run(outputs):
        return lambda state, x: nnx.merge(graph, state).encode(x, outputs=outputs)

    saved = flops(run(slice(None)), state, x) - flops(run(slice(chosen)), state, x)
    expected = last_layer_flops(encoder, batch, length, chosen)
    # Norms, softmax and activations are counted besides products.
    assert expected <= saved <= 1.35 * expected


def test_reordered_masks_still_give_the_chosen_positions(encoder, monkeypatch):
    ids, padding = list(forms(17))[3]
    embeddings = encoder.embed(ids)
    whole = run(encoder, embeddings, method="encode", **padding)
    monkeypatch.setattr(encoder_module, "fused_kernel", lambda *_: True)
    graph, state = nnx.split(encoder)

    @jax.jit
    def chosen(state):
        model = nnx.merge(graph, state)
        return model.encode(embeddings, outputs=slice(12, None), **padding)

    part = chosen(state)
    np.testing.assert_allclose(part, whole[:, 12:], atol=2e-6 * np.abs(whole).max())


def test_a_step_is_refused(pairs):
    encoder = pairs("bert")[0]
    embeddings = encoder.embed(np.ones((2, 8), int))
    with pytest.raises(ValueError, match="without a step"):
        encoder.encode(embeddings, outputs=slice(None, None, 2))


@pytest.mark.parametrize("given", ["nothing", "lengths", "mask", "skip"])
def test_cls_pooling_computes_its_token_alone(encoder, given, monkeypatch):
    model = BiEncoder(encoder, "cls")
    lengths = None if given == "nothing" else np.array(LENGTHS)
    ids, _ = padded(LENGTHS, 17)
    skip = 2 if given == "skip" else None
    whole = encoder(ids, lengths=lengths)
    want = pool(whole, token_mask(ids.shape, None, lengths), "cls", skip)
    shapes, encode = [], encoder.encode

    def spy(*args, **kwargs):
        hidden = encode(*args, **kwargs)
        shapes.append(hidden.shape)
        return hidden

    monkeypatch.setitem(vars(encoder), "encode", spy)
    if given == "mask":
        got = model(*padded(LENGTHS, 17, side="left"))
    else:
        got = model(ids, lengths=lengths, skip=skip)
    assert shapes[0][1] == (1 if given in ("nothing", "lengths") else 17)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.fixture(scope="module", params=["bert", "nomic_bert", "modernbert", "qwen3"])
def contextual(request, pairs):
    encoder = sharpen(pairs(request.param)[0])
    config = ContextualConfig(context_size=C, soft_tokens=SOFT)
    copies = copy_encoder(encoder, 1), copy_encoder(encoder)
    return ContextualEncoder(config, *copies, nnx.Rngs(1))


def stage(graph, ids, lengths):
    def run(state, context):
        model = nnx.merge(graph, state)
        return model.second_stage(ids, context=context, lengths=lengths)

    return run


def test_a_shared_context_gives_what_one_per_text_does(contextual):
    ids, _ = padded(LENGTHS, 17)
    context = np.random.default_rng(0).normal(size=(C, 64)).astype(np.float32)
    each = np.broadcast_to(context, (3, *context.shape))
    graph, state = nnx.split(contextual)
    run = stage(graph, ids, np.array(LENGTHS))
    weight = np.random.default_rng(1).normal(size=(3, 64))

    @jax.jit
    def of(state, context):
        return jax.vjp(run, state, context)[1](weight.astype(np.float32))

    shared, apart = jax.jit(run)(state, context), jax.jit(run)(state, each)
    np.testing.assert_allclose(shared, apart, atol=1e-6 * np.abs(apart).max())
    (got, of_context), (want, of_each) = of(state, context), of(state, each)
    close((got, of_context), (want, of_each.sum(0)))


def test_a_shared_context_is_projected_once(contextual):
    ids, _ = padded(LENGTHS, 17)
    graph, state = nnx.split(contextual)
    run = stage(graph, ids, np.array(LENGTHS))
    context = jnp.ones((C, 64))
    each = jnp.broadcast_to(context, (3, C, 64))
    saved = flops(run, state, each) - flops(run, state, context)
    kernel = contextual.backbone.layers[0].attention.qkv.kernel[...]
    expected = 2 * (3 - 1) * (C + SOFT) * kernel.size
    assert expected <= saved <= 1.35 * expected
