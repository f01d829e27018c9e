"""T5's encoder: buckets of distances, checkpoints of whole models, mT5."""

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cdejax.models import T5, T5Config, from_pretrained, to_state_dict
from cdejax.models.checkpoints.registry import architecture
from cdejax.models.checkpoints.t5 import read
from cdejax.models.encoder import copy_encoder
from cdejax.models.relative import buckets
from tests.models.oracles import (
    TOLERANCE,
    biencoder,
    draw,
    hidden,
    padded,
    run,
    state_dict,
    t5,
    torch,
    transformers,
)

SMALL = {"vocab_size": 96, "d_model": 64, "num_layers": 2, "num_heads": 4}
SMALL |= {"d_ff": 96, "d_kv": 12}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, other[name], err_msg=name)


@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (16, 40), (64, 300)])
def test_buckets_are_transformers_own(count, farthest):
    from transformers.models.t5.modeling_t5 import T5Attention

    where = np.arange(400)
    offset = torch.arange(400)[None, :] - torch.arange(400)[:, None]
    expected = T5Attention._relative_position_bucket(
        offset, num_buckets=count, max_distance=farthest
    )
    np.testing.assert_array_equal(buckets(where, count, farthest), expected)


def test_buckets_of_the_configuration_are_used(tmp_path):
    oracle = t5(relative_attention_num_buckets=16, relative_attention_max_distance=40)
    oracle.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path).encoder
    ids, mask = padded([60, 33], 60)
    gap = np.abs(np.asarray(run(encoder, ids, mask)) - hidden(oracle, ids, mask))
    assert gap[mask].max() <= TOLERANCE


def test_whole_models_load_without_their_decoder(tmp_path):
    whole = draw(
        transformers.T5ForConditionalGeneration(
            transformers.T5Config(**SMALL, feed_forward_proj="gated-gelu")
        )
    )
    whole.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path).encoder
    names = to_state_dict(encoder)
    state = {name: value.numpy() for name, value in whole.state_dict().items()}
    assert_equal(names, {name: state[name] for name in names})
    assert not any("decoder" in name for name in names)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    save_file(tensors, file)
    assert_equal(to_state_dict(biencoder(tmp_path).encoder), names)
    shorter = from_pretrained(tmp_path, layers=1)
    assert_equal(to_state_dict(shorter), to_state_dict(copy_encoder(encoder, 1)))


def test_mt5_is_the_same_encoder(tmp_path):
    config = transformers.MT5Config(**SMALL)
    oracle = draw(transformers.MT5EncoderModel(config))
    oracle.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path).encoder
    assert encoder.config.feed_forward_proj == "gated-gelu"
    assert_equal(to_state_dict(encoder), state_dict(oracle))
    ids, mask = padded([30, 12], 30)
    gap = np.abs(np.asarray(run(encoder, ids, mask)) - hidden(oracle, ids, mask))
    assert gap[mask].max() <= TOLERANCE


def test_umt5_is_refused_by_name():
    # It has a table of biases in every layer.
    with pytest.raises(ValueError, match=r"'umt5' is none of ours: .*mt5, .*t5"):
        architecture({"model_type": "umt5"}, "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, "'gated-silu'; cdejax computes relu"),
        ({"relative_attention_num_buckets": 30}, "needs a multiple of 4"),
        ({"relative_attention_max_distance": 8}, "more than a quarter"),
        ({"d_model": None}, "keys missing: d_model"),
    ],
)
def test_what_is_not_computed_is_refused(change, message):
    with pytest.raises(ValueError, match=f"config.json: .*{message}"):
        read({**SMALL, **change}, "config.json")


def test_fresh_weights_start_as_published():
    config = T5Config(vocab_size=400, hidden_size=64, num_hidden_layers=1, head_dim=16)
    encoder = T5(config, nnx.Rngs(0))
    kernel = np.asarray(encoder.layers[0].attention.qkv.kernel[...])
    parts = np.split(kernel, 3, axis=1)
    expected = [(64 * 16) ** -0.5, 64**-0.5, 64**-0.5]
    np.testing.assert_allclose([part.std() for part in parts], expected, rtol=0.05)
    assert abs(np.asarray(encoder.word[...]).std() - 1) < 0.05
