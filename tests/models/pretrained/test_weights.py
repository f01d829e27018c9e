"""Weights: bit-equal there and back, all mismatches at once."""

import json

import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cdejax.models import (
    Bert,
    BertConfig,
    BiEncoder,
    ContextualConfig,
    ContextualEncoder,
    NomicBert,
    NomicBertConfig,
    config_dict,
    from_pretrained,
    load_state_dict,
    to_state_dict,
)
from cdejax.models.encoder import copy_encoder
from cdejax.models.layers import Head
from cdejax.models.pretrained.weights import table_of
from tests.models.oracles import (
    TOLERANCE,
    biencoder,
    hidden,
    nomic_bert,
    padded,
    run,
    state_dict,
    torch,
    transformers,
)


def randomise(model, seed=3):
    """All parameters random, so that no two tensors can be confused."""
    rng = np.random.default_rng(seed)
    for _, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        param[...] = rng.normal(size=param.shape).astype(np.float32)
    return model


def tiny(kind, layers=2, seed=0):
    config = {"bert": BertConfig, "nomic_bert": NomicBertConfig}[kind](
        40, 16, layers, 2, 24, max_position_embeddings=16
    )
    cls = {"bert": Bert, "nomic_bert": NomicBert}[kind]
    return randomise(cls(config, nnx.Rngs(seed)), seed)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, other[name], err_msg=name)


def save(folder, tensors, config):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def models(kind):
    yield tiny(kind)
    yield BiEncoder(tiny(kind))
    yield randomise(BiEncoder(tiny(kind), head="mlp", rngs=nnx.Rngs(0)))
    config = ContextualConfig(context_size=4, soft_tokens=3)
    stages = tiny(kind), tiny(kind, 1, seed=1)
    yield randomise(ContextualEncoder(config, *stages, nnx.Rngs(0)))


@pytest.mark.parametrize("kind", ["bert", "nomic_bert"])
def test_state_dicts_hold_every_parameter_once_and_come_back_bit_equal(kind):
    for model in models(kind):
        flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
        paths = sorted(".".join(map(str, path)) for path, _ in flat)
        assert sorted(entry.path for entry in table_of(model)) == paths
        tensors = to_state_dict(model)
        assert sum(t.size for t in tensors.values()) == sum(v.size for _, v in flat)
        other = nnx.clone(model)
        for _, param in nnx.to_flat_state(nnx.state(other, nnx.Param)):
            param[...] = np.zeros(param.shape, np.float32)
        load_state_dict(other, tensors)
        for (path, one), (_, two) in zip(
            flat, nnx.to_flat_state(nnx.state(other, nnx.Param)), strict=True
        ):
            np.testing.assert_array_equal(one[...], two[...], err_msg=str(path))


def test_torch_loads_our_state_dict_strictly_and_gives_it_back(pair):
    encoder, oracle = pair
    tensors = to_state_dict(encoder)
    config = type(oracle.config)(**config_dict(encoder))
    fresh = type(oracle)(config)
    state = {name: torch.tensor(tensor) for name, tensor in tensors.items()}
    result = fresh.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    tied = getattr(oracle, "_tied_weights_keys", None) or {}
    missing = set(result.missing_keys) - set(tied)
    assert all(key.startswith("pooler.") for key in missing)
    assert_equal(tensors, state_dict(oracle))


def test_transformers_computes_the_same_from_our_folder(pair, tmp_path):
    encoder, oracle = pair
    folder = save(tmp_path, to_state_dict(encoder), config_dict(encoder))
    theirs = type(oracle).from_pretrained(folder).eval()
    ids, mask = padded([30, 7], 30, pad=1)
    gap = np.abs(np.asarray(run(encoder, ids, mask)) - hidden(theirs, ids, mask))
    assert gap[mask].max() <= TOLERANCE


def test_published_names_of_a_contextual_encoder():
    *_, model = models("nomic_bert")
    shapes = {name: tensor.shape for name, tensor in to_state_dict(model).items()}
    first, second = "first_stage_model.", "second_stage_model."
    layer = f"{second}backbone.encoder.layers.0."
    expected = {
        f"{first}embedder.embeddings.word_embeddings.weight": (40, 16),
        f"{first}embedder.emb_ln.bias": (16,),
        f"{first}embedder.encoder.layers.1.attn.Wqkv.weight": (48, 16),
        f"{first}mlp.0.weight": (16, 16),
        f"{first}mlp.2.bias": (16,),
        f"{layer}attn.out_proj.weight": (16, 16),
        f"{layer}mlp.fc11.weight": (24, 16),
        f"{layer}mlp.fc12.weight": (24, 16),
        f"{layer}mlp.fc2.weight": (16, 24),
        f"{layer}norm1.weight": (16,),
        f"{layer}norm2.bias": (16,),
        f"{second}prompt_projection.0.weight": (16, 16),
        f"{second}prompt_projection.2.weight": (48, 16),
        f"{second}output_projection.2.weight": (16, 16),
        f"{second}sequence_dropout_null_embedding": (16,),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    assert len(shapes) == 4 * 2 + 3 * 9 + 4 + 8 + 1


def hub_names(tensors):
    """Nomic's own names and fused projection, written out by hand."""
    table = [
        ("embeddings.LayerNorm", "emb_ln"),
        ("layers.", "encoder.layers."),
        ("self_attn.o_proj", "attn.out_proj"),
        ("mlp.up_proj", "mlp.fc11"),
        ("mlp.gate_proj", "mlp.fc12"),
        ("mlp.down_proj", "mlp.fc2"),
        ("post_attention_layernorm", "norm1"),
        ("post_mlp_layernorm", "norm2"),
    ]
    out = {}
    for name, tensor in tensors.items():
        for native, hub in table:
            name = name.replace(native, hub)
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            parts = (name.replace("q_proj", f"{n}_proj") for n in "qkv")
            native = [tensors[p.replace("encoder.", "", 1)] for p in parts]
            name = name.replace("self_attn.q_proj", "attn.Wqkv")
            tensor = np.concatenate(native)
        out[name] = tensor
    return out


def hub_keys(config):
    return {
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "layer_norm_epsilon": config.layer_norm_eps,
        "n_embd": config.hidden_size,
        "n_head": config.num_attention_heads,
        "n_inner": config.intermediate_size,
        "n_layer": config.num_hidden_layers,
        "n_positions": config.max_position_embeddings,
        "pad_vocab_size_multiple": 8,
        "prenorm": False,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_scaling_factor": None,
        "type_vocab_size": 2,
        "vocab_size": config.vocab_size - 3,
    }


def test_three_forms_of_nomic_bert_folders_load_alike(tmp_path):
    model = tiny("nomic_bert")
    native = to_state_dict(model)
    hub = hub_names(native)
    keys = config_dict(model)
    pretraining = {f"bert.{name}": tensor for name, tensor in hub.items()}
    pretraining["cls.predictions.bias"] = np.zeros(40, np.float32)
    forms = {
        "hub": (pretraining, hub_keys(model.config)),
        "native": (native, keys),
        "mixed": (hub, keys),
    }
    for name, (tensors, config) in forms.items():
        loaded = from_pretrained(save(tmp_path / name, tensors, config))
        assert isinstance(loaded, BiEncoder)
        assert loaded.encoder.config == model.config
        assert_equal(to_state_dict(loaded), native)


def test_what_transformers_saves_is_the_mixed_form(tmp_path):
    oracle = nomic_bert(5, rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    oracle.save_pretrained(tmp_path)
    assert any("Wqkv" in name for name in load_file(tmp_path / "model.safetensors"))
    encoder = biencoder(tmp_path).encoder
    assert encoder.config.rotary_base == 77.0
    back = {name: value.numpy() for name, value in oracle.state_dict().items()}
    assert_equal(to_state_dict(encoder), back)


def test_the_inner_size_is_what_the_weights_say(tmp_path):
    config = NomicBertConfig(40, 16, 1, 2, 256)
    model = randomise(NomicBert(config, nnx.Rngs(0)))
    keys = hub_keys(config) | {"n_inner": 24}
    loaded = biencoder(save(tmp_path, hub_names(to_state_dict(model)), keys))
    assert loaded.encoder.config.intermediate_size == 256


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_bert_loads_with_prefix_pooler_heads_and_old_norm_names(tmp_path, prefix):
    model = tiny("bert")
    native = to_state_dict(model)
    tensors = {
        prefix
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in native.items()
    }
    tensors[f"{prefix}pooler.dense.weight"] = np.zeros((16, 16), np.float32)
    tensors[f"{prefix}embeddings.position_ids"] = np.arange(16)[None]
    tensors["cls.predictions.bias"] = np.zeros(40, np.float32)
    loaded = from_pretrained(save(tmp_path, tensors, config_dict(model)))
    assert_equal(to_state_dict(loaded), native)


def test_first_layers_only(tmp_path):
    model = tiny("bert", 3)
    folder = save(tmp_path, to_state_dict(model), config_dict(model))
    shorter = from_pretrained(folder, layers=2)
    assert_equal(to_state_dict(shorter), to_state_dict(copy_encoder(model, 2)))
    with pytest.raises(ValueError, match="4 layers asked for, but it has 3"):
        from_pretrained(folder, layers=4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_files_become_float32(tmp_path, dtype):
    model = tiny("bert")
    half = {name: t.astype(dtype) for name, t in to_state_dict(model).items()}
    loaded = from_pretrained(save(tmp_path, half, config_dict(model)))
    wide = {name: tensor.astype(np.float32) for name, tensor in half.items()}
    assert_equal(to_state_dict(loaded), wide)


def test_all_mismatches_are_reported_at_once():
    tensors = to_state_dict(tiny("bert"))
    del (
        tensors["embeddings.LayerNorm.bias"],
        tensors["encoder.layer.1.output.dense.bias"],
    )
    tensors["classifier.weight"] = np.zeros((2, 16), np.float32)
    tensors["encoder.layer.0.output.dense.weight"] = np.zeros((16, 25), np.float32)
    tensors["embeddings.LayerNorm.weight"] = np.ones(16, np.int8)
    model = tiny("bert")
    before = to_state_dict(model)
    with pytest.raises(ValueError, match="do not fit") as error:
        load_state_dict(model, tensors, source="some/folder")
    assert str(error.value) == (
        "some/folder: the weights do not fit the model of config.json (2 missing: "
        "embeddings.LayerNorm.bias (16,), encoder.layer.1.output.dense.bias (16,); "
        "1 unexpected: classifier.weight (2, 16); 1 of another shape: "
        "encoder.layer.0.output.dense.weight is (16, 25), not (16, 24); 1 not of "
        "floats: embeddings.LayerNorm.weight is int8). They seem to be quantised: save "
        "them in float32, bfloat16 or float16, without quantisation"
    )
    assert_equal(to_state_dict(model), before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 3}, "16 missing: .*, and 13 more.* of fewer layers"),
        ({"num_hidden_layers": 1}, "16 unexpected: .*, and 13 more.* not describe"),
        ({"vocab_size": 41}, r"1 of another shape: .*\(40, 16\), not \(41, .* sizes"),
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_weights_that_do_not_fit_are_told_in_one_line(name, change, said, tmp_path):
    model = tiny("bert")
    folder = save(tmp_path, to_state_dict(model), config_dict(model) | change)
    if name.endswith("json"):
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        places = dict.fromkeys(to_state_dict(model), "a.safetensors")
        (folder / name).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ValueError, match=said) as error:
        from_pretrained(folder)
    assert str(error.value).startswith(f"{folder / name}: the weights do not fit")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("kind", ["bert", "nomic_bert"])
def test_contextual_folders_come_back_whole(tmp_path, kind):
    first, second = tiny(kind, 1, seed=1), tiny(kind, 2, seed=2)
    config = ContextualConfig(
        context_size=5,
        soft_tokens=3,
        pooling="cls",
        first_stage_residual=True,
        output_residual=False,
        sequence_dropout=0.25,
    )
    model = randomise(ContextualEncoder(config, first, second, nnx.Rngs(0)))
    loaded = from_pretrained(save(tmp_path, to_state_dict(model), config_dict(model)))
    assert isinstance(loaded, ContextualEncoder)
    assert loaded.config == config
    assert loaded.first.encoder.config == first.config
    assert loaded.backbone.config == second.config
    assert isinstance(loaded.first.head, Head)
    assert loaded.first.head.residual
    assert loaded.first.pooling == "cls"
    assert_equal(to_state_dict(loaded), to_state_dict(model))
    ids = np.arange(1, 9).reshape(2, 4)
    context = model.first_stage(ids)
    np.testing.assert_array_equal(loaded.first_stage(ids), context)
    ours = model.second_stage(ids, context=context)
    np.testing.assert_array_equal(loaded.second_stage(ids, context=context), ours)


def test_stages_that_differ_in_more_than_layers_cannot_be_exported():
    first = Bert(BertConfig(40, 16, 1, 4, 24), nnx.Rngs(0))
    second = Bert(BertConfig(40, 16, 1, 2, 24), nnx.Rngs(0))
    model = ContextualEncoder(ContextualConfig(), first, second, nnx.Rngs(0))
    with pytest.raises(ValueError, match="differ in more than layers"):
        config_dict(model)


def test_our_config_is_transformers_own(pair):
    encoder, oracle = pair
    values = config_dict(encoder)
    config = transformers.AutoConfig.for_model(**values)
    assert type(config) is type(oracle.config)
    for key, value in values.items():
        if key not in ("architectures", "dtype"):
            assert getattr(config, key) == value == getattr(oracle.config, key), key
