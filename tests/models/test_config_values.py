"""Every number of a `config.json` is one that a model can compute with, or refused."""

import json
import re

import pytest
from flax import nnx
from safetensors.numpy import save_file

from cdejax.models import (
    Bert,
    BertConfig,
    ContextualConfig,
    ContextualEncoder,
    NomicBert,
    NomicBertConfig,
    Qwen3,
    Qwen3Config,
    Roberta,
    RobertaConfig,
    config_dict,
    from_pretrained,
    to_state_dict,
)
from cdejax.models.checkpoints.config import read_fields
from cdejax.models.checkpoints.nomic_bert import NOMIC_BERT
from cdejax.models.checkpoints.registry import ARCHITECTURES

BAD = [float("nan"), float("inf"), -1, "1", True, [1], 10**400]
"""No model can compute with these, whatever they are to be."""
FILE = "model/config.json"
# transformers has them as constants, whatever config.json says.
UNREAD = {("mpnet", "pad_token_id")}
HUB = {
    "model_type": "nomic_bert",
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_inner": 24,
    "n_positions": 64,
    "type_vocab_size": 2,
    "layer_norm_epsilon": 1e-12,
    "initializer_range": 0.02,
    "rotary_emb_base": 1000.0,
    "pad_vocab_size_multiple": 8,
    "pad_token_id": 0,
}


def numbers(raw, *path):
    """Where the numbers of a JSON object stand."""
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from numbers(value, *path, key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, key)


def replaced(raw, path, value):
    key, *rest = path
    return {**raw, key: replaced(raw[key], rest, value) if rest else value}


def cases():
    forms = [(found, found.write(found.config())) for found in ARCHITECTURES]
    for found, raw in [*forms, (NOMIC_BERT, HUB)]:
        for path in numbers(raw):
            if (raw["model_type"], path[-1]) not in UNREAD:
                name = ".".join((raw["model_type"], *path))
                yield pytest.param(found, raw, path, id=name)


@pytest.mark.parametrize(("found", "raw", "path"), list(cases()))
def test_numbers_that_make_no_sense_are_refused(found, raw, path):
    found.read(raw, FILE)
    for value in BAD:
        with pytest.raises(ValueError, match=rf"^{FILE}: ") as error:
            found.read(replaced(raw, path, value), FILE)
        said = str(error.value)
        assert path[-1] in said
        assert f"{value!r:.60}" in said
        assert "\n" not in said


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        ({"layer_norm_eps": 0}, "0, not a finite number above 0"),
        ({"layer_norm_eps": 1e-60}, "1e-60, not a finite number above 0"),
        ({"layer_norm_eps": 1e39}, r"1e\+39, not a finite number above 0"),
        ({"hidden_size": 16.0}, "16.0, not a whole number from 1 to 2147483647"),
        ({"hidden_size": 2**31}, "2147483648, not a whole number from 1 to"),
        ({"type_vocab_size": 0}, "0, not a whole number from 1 to"),
        ({"pad_token_id": -1}, "-1, not a whole number from 0 to"),
        ({"hidden_dropout_prob": 1.0}, "1.0, not a probability from 0 to below 1"),
        ({"attention_probs_dropout_prob": -0.1}, "-0.1, not a probability"),
        ({"classifier_dropout": "0.1"}, "'0.1', not a probability"),
        ({"attn_pdrop": float("nan")}, "nan, not a probability"),
    ],
)
def test_what_is_needed_is_said(change, needed):
    ((key, _),) = change.items()
    raw = {**config_dict(Bert(BertConfig(40, 16, 1, 2, 24), nnx.Rngs(0))), **change}
    with pytest.raises(ValueError, match=f"{FILE}: {key} is {needed}"):
        read_fields(BertConfig, raw, FILE)


def test_usual_dropouts_and_whole_floats_are_read():
    raw = dict.fromkeys(("hidden_dropout_prob", "resid_pdrop"), 0) | {
        "attention_dropout": 0.1,
        "classifier_dropout": None,
    }
    sizes = NOMIC_BERT.write(NomicBertConfig(rotary_base=1000.0))
    sizes["rope_parameters"]["rope_theta"] = 1000
    assert NOMIC_BERT.read({**sizes, **raw}, FILE) == NomicBertConfig()


@pytest.mark.parametrize("key", ["rope_parameters", "layer_types"])
@pytest.mark.parametrize("kind", ["qwen3", "modernbert"])
def test_objects_and_lists_are_no_texts(kind, key):
    (found,) = (a for a in ARCHITECTURES if kind in a.model_types)
    raw = {**found.write(found.config()), key: "default"}
    with pytest.raises(ValueError, match=f"{key} is 'default', not a"):
        found.read(raw, FILE)


@pytest.mark.parametrize(
    ("raw", "key"),
    [(HUB | {"n_embd": None}, "n_embd"), (HUB | {"n_inner": 0}, "n_inner")],
)
def test_nomics_inner_size_is_checked(raw, key):
    with pytest.raises(ValueError, match=f"{FILE}: {key} is "):
        NOMIC_BERT.read(raw, FILE)


def test_true_is_no_one():
    with pytest.raises(ValueError, match="rotary_emb_fraction: True"):
        NOMIC_BERT.read(HUB | {"rotary_emb_fraction": True}, FILE)


def test_nothing_is_read_of_weights_before(tmp_path):
    model = Bert(BertConfig(40, 16, 1, 2, 24), nnx.Rngs(0))
    raw = config_dict(model) | {"layer_norm_eps": float("nan")}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    place = re.escape(str(tmp_path / "config.json"))
    with pytest.raises(ValueError, match=f"^{place}: layer_norm_eps is nan, not a"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"soft_tokens": True}, "soft_tokens is True, not a whole"),
        ({"transductive_corpus_size": 0}, "transductive_corpus_size is 0, not a whole"),
        (
            {"transductive_sequence_dropout_prob": 1.0},
            "transductive_sequence_dropout_prob is 1.0, not a probability",
        ),
        ({"limit_layers": True}, "limit_layers is True"),
    ],
)
def test_numbers_of_contextual_models(change, said, tmp_path):
    sizes = BertConfig(40, 16, 1, 2, 24)
    stages = Bert(sizes, nnx.Rngs(0)), Bert(sizes, nnx.Rngs(0))
    model = ContextualEncoder(ContextualConfig(4), *stages, nnx.Rngs(0))
    save_file(to_state_dict(model), tmp_path / "model.safetensors")
    raw = config_dict(model)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**raw, **change}))
    with pytest.raises(ValueError, match=f"config.json: {said}"):
        from_pretrained(tmp_path)
    inner = {**raw["backbone_config"], "layer_norm_eps": float("nan")}
    (tmp_path / "config.json").write_text(json.dumps(raw | {"backbone_config": inner}))
    with pytest.raises(ValueError, match="json: backbone_config: layer_norm_eps is na"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("encoder", "config", "said"),
    [
        (NomicBert, NomicBertConfig(40, 6, 1, 2, 24), "heads of size 3: .* be even"),
        (Qwen3, Qwen3Config(40, 16, 1, 2, 1, 5), "heads of size 5: .* be even"),
        (
            Roberta,
            RobertaConfig(40, 16, 1, 2, 24, max_position_embeddings=2),
            "max_position_embeddings 2 is too small",
        ),
    ],
)
def test_sizes_that_make_no_sense_together(encoder, config, said):
    with pytest.raises(ValueError, match=said):
        encoder(config, nnx.Rngs(0))


def test_settings_that_only_sound_like_a_dropout_are_left_alone():
    raw = config_dict(Bert(BertConfig(40, 16, 1, 2, 24), nnx.Rngs(0)))
    odd = {"disable_dropout": True, "use_dropout": False, "layer_dropout": [0, 2]}
    assert read_fields(BertConfig, raw | odd, FILE) == read_fields(
        BertConfig, raw, FILE
    )


def test_far_more_layers_than_weights_are_refused_at_once(tmp_path):
    model = Bert(BertConfig(40, 16, 1, 2, 24), nnx.Rngs(0))
    raw = config_dict(model) | {"num_hidden_layers": 2**31 - 1}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file(to_state_dict(model), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="num_hidden_layers is 2147483647, but the"):
        from_pretrained(tmp_path)


def test_far_more_layers_of_a_contextual_model(tmp_path):
    backbone = NomicBertConfig(40, 16, 1, 2, 24)
    rngs = nnx.Rngs(0)
    first, second = NomicBert(backbone, rngs), NomicBert(backbone, rngs)
    config = ContextualConfig(context_size=2)
    model = ContextualEncoder(config, first, second, rngs)
    raw = config_dict(model)
    raw["backbone_config"]["num_hidden_layers"] = 9999
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file(to_state_dict(model), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="backbone_config: num_hidden_layers is 9999"):
        from_pretrained(tmp_path)


def test_json_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"config\.json: not valid JSON"):
        from_pretrained(tmp_path)
