"""ModernBERT: its window, its two kinds of layers, its variants."""

import dataclasses

import jax
import numpy as np
import pytest

from cdejax.models import to_state_dict
from cdejax.models.checkpoints.modernbert import read, write
from cdejax.models.encoder import copy_encoder
from cdejax.models.encoders.modernbert import window
from tests.models.conftest import load
from tests.models.oracles import (
    TOLERANCE,
    biencoder,
    draw,
    hidden,
    modernbert,
    padded,
    run,
    state_dict,
    transformers,
)


def sharp(**sizes):
    """An oracle whose tokens read each other unevenly, so that a window shows."""
    oracle = modernbert(**sizes)
    for layer in oracle.layers:
        layer.attn.Wqkv.weight.data *= 8
    return oracle


def gap(ours, theirs, mask):
    return np.abs(np.asarray(ours) - theirs)[mask].max()


@pytest.mark.parametrize(
    ("width", "implementation"), [(20, "eager"), (21, "sdpa"), (128, "eager")]
)
def test_the_window_ends_where_transformers_has_it(tmp_path, width, implementation):
    oracle = sharp(local_attention=width)
    encoder, oracle = load(oracle, tmp_path)
    oracle.set_attn_implementation(implementation)
    ids, mask = padded([70, 66], 70, side="left")
    expected = hidden(oracle, ids, mask)
    assert gap(run(encoder, ids, mask), expected, mask) <= TOLERANCE
    for other in (width - 2, width + 2):
        wrong = copy_encoder(encoder)
        wrong.config = dataclasses.replace(encoder.config, local_attention=other)
        assert gap(run(wrong, ids, mask), expected, mask) > 10 * TOLERANCE


def test_the_window_goes_by_positions_and_vanishes_where_it_hides_nothing():
    where = np.array([0, 0, 0, 30, 40, 41])
    expected = [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 0, 1, 1],
    ]
    np.testing.assert_array_equal(window(where, 10), np.array(expected, bool))
    np.testing.assert_array_equal(
        jax.jit(window, static_argnums=1)(where, 10), window(where, 10)
    )
    batched = window(np.stack([where, np.arange(6)]), 10)
    assert batched is not None
    np.testing.assert_array_equal(batched[0], window(where, 10))
    assert batched[1].all()
    assert window(np.arange(11), 10) is None
    assert window(np.arange(12), 10) is not None
    assert window(where, 41) is None


def test_which_layers_are_local_and_which_base_they_turn_by(tmp_path):
    oracle = sharp(num_hidden_layers=5, global_attn_every_n_layers=3, local_attention=8)
    encoder, oracle = load(oracle, tmp_path)
    assert [layer.local for layer in encoder.layers] == [False, True, True, False, True]
    ids, mask = padded([30, 12], 30)
    expected = hidden(oracle, ids, mask)
    assert gap(run(encoder, ids, mask), expected, mask) <= TOLERANCE
    for key in ("global_rope_theta", "local_rope_theta"):
        wrong = copy_encoder(encoder)
        wrong.config = dataclasses.replace(encoder.config, **{key: 500.0})
        assert gap(run(wrong, ids, mask), expected, mask) > 10 * TOLERANCE


def test_all_biases_are_computed_where_a_model_has_them(tmp_path):
    oracle = sharp(norm_bias=True, attention_bias=True, mlp_bias=True)
    encoder, oracle = load(oracle, tmp_path)
    ids, mask = padded([24, 5], 24)
    expected = hidden(oracle, ids, mask)
    assert gap(run(encoder, ids, mask), expected, mask) <= TOLERANCE
    ours = to_state_dict(encoder)
    assert ours.keys() == state_dict(oracle).keys()
    assert "layers.0.attn_norm.bias" not in ours
    assert "layers.1.attn_norm.bias" in ours


def test_a_checkpoint_with_its_pretraining_head_loads(tmp_path):
    config = modernbert().config
    whole = draw(transformers.ModernBertForMaskedLM(config))
    whole.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path).encoder
    expected = state_dict(whole.model)
    tensors = to_state_dict(encoder)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, expected[name])


RAW = {
    "model_type": "modernbert",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
}


def test_the_keys_of_transformers_4_and_5_are_read():
    old = {"global_attn_every_n_layers": 2, "global_rope_theta": 9e4}
    ours = read({**RAW, **old, "local_rope_theta": 7000}, "config.json")
    assert (ours.global_attn_every_n_layers, ours.global_rope_theta) == (2, 9e4)
    assert ours.local_rope_theta == 7000.0
    same = read({**RAW, **old, "local_rope_theta": None}, "config.json")
    assert same.local_rope_theta == 9e4  # transformers 4: as the global one
    new = write(ours)
    assert new["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert read(new, "config.json") == ours
    del new["global_attn_every_n_layers"]
    assert read(new, "config.json") == ours
    plain = read(RAW, "config.json")
    theirs = transformers.AutoConfig.for_model(**RAW)
    assert write(plain)["layer_types"] == theirs.layer_types
    assert write(plain)["rope_parameters"] == theirs.rope_parameters
    assert plain.local_attention == theirs.local_attention == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation: 'silu'"),
        ({"global_attn_every_n_layers": 0}, "is 0, not a whole number from 1 to"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types is"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"rope_parameters": {"rope_theta": 1e4}}, r"has keys \['rope_theta'\]"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "full_attention: .*rope_type: 'yarn'",
        ),
    ],
)
def test_what_is_not_computed_is_refused(change, message):
    with pytest.raises(ValueError, match=f"config.json.*{message}"):
        read({**RAW, **change}, "config.json")
