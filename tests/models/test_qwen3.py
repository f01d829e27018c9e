"""Qwen3: causal with last-token pooling, and without causality."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from cdejax.models import BiEncoder, Qwen3, Qwen3Config, to_state_dict
from cdejax.models.checkpoints.qwen3 import read, write
from cdejax.models.encoder import copy_encoder
from tests.models.oracles import (
    TOLERANCE,
    biencoder,
    draw,
    padded,
    qwen3,
    run,
    sharpen,
    state_dict,
    torch,
    transformers,
)


@pytest.fixture(scope="module")
def causal(pairs):
    return pairs("qwen3")


def test_tokens_read_only_what_stands_before_them(causal, pairs):
    ids, _ = padded([12], 12)
    other = ids.copy()
    other[:, 8:] = 95 - other[:, 8:]
    for (encoder, _), changes in (
        (causal, False),
        (pairs("qwen3_bidirectional"), True),
    ):
        sharp = sharpen(encoder)
        gap = np.abs(np.asarray(run(sharp, ids)) - np.asarray(run(sharp, other)))
        assert (gap[:, :8].max() > 1e-3) == changes
        assert gap[:, 8:].max() > 1e-3


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_bidirectional"])
def test_last_token_embeddings_do_not_depend_on_the_padding_s_side(pairs, kind):
    model = BiEncoder(sharpen(pairs(kind)[0]), "last")
    lengths = [20, 3, 11]
    right = run(model, *padded(lengths, 20))
    left = run(model, *padded(lengths, 20, side="left"))
    np.testing.assert_allclose(left, right, atol=5e-6)
    by_length = run(model, padded(lengths, 20)[0], lengths=np.array(lengths))
    np.testing.assert_allclose(by_length, right, atol=5e-6)


def test_without_causality_equals_a_mask_that_lets_all_tokens_read_all(causal):
    encoder, oracle = causal
    free = copy_encoder(encoder)
    free.config = dataclasses.replace(encoder.config, is_causal=False)
    for layer in free.layers:
        layer.attention.causal = False
    ids, mask = padded([18, 7], 18)
    additive = torch.zeros(2, 1, 18, 18).masked_fill(
        ~torch.tensor(mask)[:, None, None, :], float(np.finfo(np.float32).min)
    )
    with torch.no_grad():
        out = oracle(
            input_ids=torch.tensor(ids), attention_mask={"full_attention": additive}
        )
    gap = np.abs(np.asarray(run(free, ids, mask)) - out.last_hidden_state.numpy())
    assert gap[mask].max() <= TOLERANCE


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_stock_transformers_heeds_is_causal_of_our_config(
    pairs, implementation, tmp_path
):
    """As our configuration's docstring says of it, with and without padding."""
    encoder, oracle = pairs("qwen3_bidirectional")
    values = write(encoder.config)
    assert values["is_causal"] is False
    assert read(values, "config.json") == encoder.config
    oracle.save_pretrained(tmp_path)
    theirs = transformers.AutoModel.from_pretrained(
        tmp_path, attn_implementation=implementation
    )
    ids, mask = padded([16, 9], 16)
    for rows in (slice(0, 1), slice(0, 2)):
        with torch.no_grad():
            out = theirs(
                input_ids=torch.tensor(ids[rows]),
                attention_mask=torch.tensor(mask[rows]).long(),
            ).last_hidden_state.numpy()
        gap = np.abs(np.asarray(run(encoder, ids[rows], mask[rows])) - out)
        assert gap[mask[rows]].max() <= TOLERANCE


def test_language_models_load_without_their_head(tmp_path):
    config = qwen3(attention_bias=True, rope_theta=5e5).config
    whole = draw(transformers.Qwen3ForCausalLM(config))
    whole.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path).encoder
    expected = state_dict(whole.model)
    tensors = to_state_dict(encoder)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, expected[name])
    ids, mask = padded([20, 6], 20)
    with torch.no_grad():
        out = whole.model(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask).long()
        ).last_hidden_state.numpy()
    gap = np.abs(np.asarray(run(encoder, ids, mask)) - out)
    assert gap[mask].max() <= TOLERANCE


RAW = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def test_the_keys_of_transformers_4_and_5_are_read():
    old = read({**RAW, "rope_theta": 1000000}, "config.json")
    assert old.rope_theta == 1e6
    assert old.is_causal
    assert read(write(old), "config.json") == old
    theirs = transformers.Qwen3Config(**RAW)
    assert read(RAW, "c").rope_theta == theirs.rope_parameters["rope_theta"]
    causal = read({**RAW, "sliding_window": 4096}, "config.json")
    assert causal == read(RAW, "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window: True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: "),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: "),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type: 'yarn'"),
        ({"is_causal": "no"}, "is_causal is 'no', not true or false"),
        ({"num_key_value_heads": None}, "keys missing: num_key_value_heads"),
    ],
)
def test_what_is_not_computed_is_refused(change, message):
    with pytest.raises(ValueError, match=f"config.json: .*{message}"):
        read({**RAW, **change}, "config.json")


def test_heads_must_share_keys_evenly():
    config = Qwen3Config(40, 16, 1, 4, 3, 8, 16)
    with pytest.raises(ValueError, match="4 is no multiple of num_key_value_heads 3"):
        Qwen3(config, nnx.Rngs(0))
