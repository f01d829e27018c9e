"""Folders: what is read from sentence-transformers' files, and every bad folder."""

import json
import logging
import subprocess
import sys

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
    config_dict,
    from_pretrained,
    to_state_dict,
)
from cdejax.models.modules import Chain
from tests.models.oracles import biencoder

NOMIC = {
    "model_type": "nomic_bert",
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_inner": 24,
}


@pytest.fixture
def bert():
    return Bert(BertConfig(40, 16, 1, 2, 24, max_position_embeddings=16), nnx.Rngs(0))


@pytest.fixture
def folder(tmp_path, bert):
    """A good folder, to be spoilt."""
    save_file(to_state_dict(bert), tmp_path / "model.safetensors")
    write(tmp_path / "config.json", config_dict(bert))
    return tmp_path


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def modules(folder, *kinds, pooling=None):
    paths = [f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)]
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write(folder / "modules.json", listed)
    write(folder / "1_Pooling" / "config.json", pooling or {"pooling_mode": "mean"})


def dense(folder, **changes):
    """A Dense module without weights."""
    modules(folder, "Transformer", "Pooling", "Dense")
    values = {"in_features": 16, "out_features": 8, "bias": False} | changes
    write(folder / "2_Dense" / "config.json", values)


def alter(folder, **changes):
    values = json.loads((folder / "config.json").read_text()) | changes
    write(folder / "config.json", values)


def drop(folder, key):
    values = json.loads((folder / "config.json").read_text())
    del values[key]
    write(folder / "config.json", values)


def test_a_plain_folder_is_a_mean_pooling_biencoder(folder, bert):
    model = from_pretrained(folder, dtype="bfloat16")
    assert isinstance(model, BiEncoder)
    assert (model.pooling, model.head) == ("mean", None)
    assert model.encoder.dtype == "bfloat16"
    assert model.encoder.config == bert.config


@pytest.mark.parametrize(
    ("raw", "pooling"),
    [
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": 1}, "max+mean"),
        ({"pooling_mode": ["mean", "cls"]}, "mean+cls"),
        ({"pooling_mode": "weightedmean", "embedding_dimension": 16}, "weightedmean"),
        ({"word_embedding_dimension": 16}, "mean"),
    ],
)
def test_pooling_comes_from_sentence_transformers_files(folder, raw, pooling):
    modules(folder, "Transformer", "Pooling", "Normalize", pooling=raw)
    assert biencoder(folder).pooling == pooling


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": False}, True),
        ({"pooling_mode_mean_tokens": False, "pooling_mode": "mean"}, False),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, False),
        ({"word_embedding_dimension": 16}, False),
    ],
)
def test_mean_pooling_that_no_flag_asks_for_is_said(folder, raw, said, caplog):
    st = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    modules(folder, "Transformer", "Pooling", pooling=raw)
    with caplog.at_level(logging.WARNING, "cdejax"):
        assert biencoder(folder).pooling == "mean"
    write(folder / "theirs" / "config.json", {"word_embedding_dimension": 16} | raw)
    assert st.Pooling.load(str(folder / "theirs")).pooling_mode == "mean"
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == said
    for message in messages:
        assert str(folder / "1_Pooling" / "config.json") in message
        assert "pooling_mode_mean_tokens: False" in message


def test_two_dense_modules_are_an_mlp_head(folder, bert):
    modules(folder, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    model = BiEncoder(bert, head="mlp", rngs=nnx.Rngs(1), head_sizes=(20, 12))
    tensors = to_state_dict(model)
    for at, index, name, given, size in (
        (2, 0, "GELU", 16, 20),
        (3, 2, "Identity", 20, 12),
    ):
        dense = folder / f"{at}_Dense"
        kind = "activation.GELU" if name == "GELU" else "linear.Identity"
        raw: dict[str, object] = {"in_features": given, "out_features": size}
        raw["activation_function"] = f"torch.nn.modules.{kind}"
        write(dense / "config.json", raw)
        weights = {
            f"linear.{n}": tensors[f"mlp.{index}.{n}"] for n in ("weight", "bias")
        }
        save_file(weights, dense / "model.safetensors")
    loaded = from_pretrained(folder)
    assert isinstance(loaded, BiEncoder)
    assert loaded.dim == 12
    ids = np.arange(1, 7).reshape(2, 3)
    np.testing.assert_array_equal(loaded(ids), model(ids))
    alter(folder / "2_Dense", activation_function="torch.nn.Tanh")
    assert isinstance(biencoder(folder).head, Chain)


def pickle_only(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def wrong_shape(folder):
    alter(folder, vocab_size=41)


def contextual(folder, **changes):
    config = ContextualConfig(context_size=4)
    sizes = BertConfig(40, 16, 1, 2, 24)
    stages = Bert(sizes, nnx.Rngs(0)), Bert(sizes, nnx.Rngs(0))
    model = ContextualEncoder(config, *stages, nnx.Rngs(0))
    values = config_dict(model) | changes
    kept = {key: value for key, value in values.items() if value != "absent"}
    write(folder / "config.json", kept)


# What is spoilt, how, and what the message must say.
BAD = {
    "no such folder": (lambda f: "elsewhere", "elsewhere': no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json there"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "no model.safetensors there",
    ),
    "pickle only": (pickle_only, "only pytorch_model.bin, a pickle.*Convert it"),
    "cut short": (cut_short, "model.safetensors: damaged or cut short"),
    "wrong shape": (wrong_shape, r"word_embeddings.weight is \(40, 16\), not \(41, 16"),
    "config not JSON": (
        lambda f: write(f / "config.json", "{"),
        "config.json: not valid JSON",
    ),
    "config no object": (
        lambda f: write(f / "config.json", "[]"),
        "config.json: a JSON object",
    ),
    "other architecture": (
        lambda f: alter(f, model_type="gpt2"),
        "model_type 'gpt2' is none of ours: bert, ",
    ),
    "other activation": (
        lambda f: alter(f, hidden_act="gelu_new"),
        r"hidden_act: 'gelu_new' \(we compute 'gelu'\)",
    ),
    "no architecture": (
        lambda f: drop(f, "model_type"),
        "config.json: no model_type there; cdejax knows bert, ",
    ),
    "missing size": (lambda f: alter(f, hidden_size=None), "missing: hidden_size"),
    "wrong type": (
        lambda f: alter(f, layer_norm_eps="small"),
        "layer_norm_eps is 'small', not a finite number above 0",
    ),
    "size a text": (
        lambda f: alter(f, hidden_size="16"),
        "config.json: hidden_size is '16', not a whole number from 1 to",
    ),
    "size a text, by its own name": (
        lambda f: write(f / "config.json", NOMIC | {"n_embd": "16"}),
        "config.json: n_embd is '16', not a whole number from 1 to",
    ),
    "heads do not divide": (
        lambda f: alter(f, num_attention_heads=3),
        "16 is no multiple of num_attention_heads 3",
    ),
    "variant of NomicBERT": (
        lambda f: write(
            f / "config.json", NOMIC | {"prenorm": True, "rotary_emb_fraction": 0.5}
        ),
        r"prenorm: True .*; rotary_emb_fraction: 0.5",
    ),
    "scaled rotary": (
        lambda f: write(
            f / "config.json",
            {**NOMIC, "hidden_size": 16, "num_hidden_layers": 1}
            | {"num_attention_heads": 2, "rope_parameters": {"rope_type": "dynamic"}},
        ),
        r"rope_type: 'dynamic' \(we compute 'default'\)",
    ),
    "modules not JSON": (
        lambda f: write(f / "modules.json", "{}1"),
        r"modules.json: not valid JSON \(Extra data: line 1 column 3 \(char 2\)\)$",
    ),
    "modules no list": (
        lambda f: write(f / "modules.json", {"path": ""}),
        r"modules.json: a list of modules was expected, not \{'path': ''\}$",
    ),
    "module without a path": (
        lambda f: write(
            f / "modules.json", [{"type": "sentence_transformers.models.Transformer"}]
        ),
        r"modules.json: a module needs texts as `type` and `path`, "
        r"not \{'type': 'sentence_transformers.models.Transformer'\}$",
    ),
    "other module": (
        lambda f: modules(f, "Transformer", "Pooling", "CNN"),
        r"modules \['Transformer', 'Pooling', 'CNN'\]",
    ),
    "module before pooling": (
        lambda f: modules(f, "Transformer", "Dense", "Pooling"),
        r"modules \['Transformer', 'Dense', 'Pooling'\]",
    ),
    "module outside": (
        lambda f: write(
            f / "modules.json",
            [{"type": "sentence_transformers.models.Transformer", "path": "../other"}],
        ),
        "Transformer at '../other', outside of the folder",
    ),
    "other pooling": (
        lambda f: modules(f, "Transformer", "Pooling", pooling={"pooling_mode": "lse"}),
        r"pooling \['lse'\] is not one of",
    ),
    "other task of the encoder": (
        lambda f: (
            modules(f, "Transformer", "Pooling"),
            write(f / "sentence_bert_config.json", {"transformer_task": "fill-mask"}),
        )[2:],
        "transformer_task is 'fill-mask'",
    ),
    "other activation of a head": (
        lambda f: dense(f, activation_function="transformers.activations.NewGELU"),
        "activation_function 'transformers.activations.NewGELU' is none of torch's",
    ),
    "head of tokens": (
        lambda f: dense(f, module_input_name="token_embeddings"),
        "module_input_name is 'token_embeddings'",
    ),
    "head of another size": (
        lambda f: dense(f, in_features=17),
        "takes vectors of size 17, but the module before it gives 16",
    ),
    "head's weights no floats": (
        lambda f: (
            dense(f),
            save_file(
                {"linear.weight": np.zeros((8, 16), np.int8)},
                f / "2_Dense" / "model.safetensors",
            ),
        )[2:],
        r"2_Dense/model.safetensors: .* \(1 not of floats: linear.weight is int8\)\. "
        "They seem to be quantised",
    ),
    "bias that is a text": (lambda f: dense(f, bias="false"), "bias is 'false'"),
    "no modules": (
        lambda f: write(f / "modules.json", []),
        r"modules.json: a list of modules was expected, not \[\]$",
    ),
    "pooling a list of lists": (
        lambda f: modules(
            f, "Transformer", "Pooling", pooling={"pooling_mode": [["mean"]]}
        ),
        "is not one of",
    ),
    "pooling's size a text": (
        lambda f: modules(
            f,
            "Transformer",
            "Pooling",
            pooling={"pooling_mode": "mean", "embedding_dimension": "16"},
        ),
        "1_Pooling/config.json: embedding_dimension is '16', but",
    ),
    "pooling of another size": (
        lambda f: modules(
            f, "Transformer", "Pooling", pooling={"word_embedding_dimension": 32}
        ),
        "1_Pooling/config.json: word_embedding_dimension is 32, but the encoder's "
        "hidden size is 16; write 16",
    ),
    "no heads": (
        lambda f: alter(f, num_attention_heads=0),
        "num_attention_heads is 0, not a whole number from 1 to",
    ),
    "negative size": (lambda f: alter(f, hidden_size=-16), "hidden_size is -16"),
    "model_type a list": (
        lambda f: alter(f, model_type=["bert"]),
        r"model_type \['bert'\] is none of ours",
    ),
    "8-bit floats": (
        lambda f: save_file(
            {"a": np.zeros(3, ml_dtypes.float8_e4m3fn)}, f / "model.safetensors"
        ),
        "a type that cdejax does not read",
    ),
    "contextual null no flag": (
        lambda f: contextual(f, null_embedding="yes"),
        "null_embedding is 'yes', not true or false",
    ),
    "prefixes' end no token": (
        lambda f: contextual(
            f, pool_ignore_instruction_tokens=True, pool_instruction_end_id=-1
        ),
        "pool_instruction_end_id is -1, not a whole number from 0 to",
    ),
    "no context places": (
        lambda f: contextual(f, transductive_corpus_size=0),
        "config.json: transductive_corpus_size is 0, not a whole number",
    ),
    "head without weights": (dense, "2_Dense: no model.safetensors there"),
    "head with a pickle": (
        lambda f: (dense(f), (f / "2_Dense" / "pytorch_model.bin").touch())[2:],
        "only pytorch_model.bin, a pickle",
    ),
    "head's weights of another shape": (
        lambda f: (
            dense(f),
            save_file(
                {"linear.weight": np.zeros((8, 15), np.float32)},
                f / "2_Dense" / "model.safetensors",
            ),
        )[2:],
        r"2_Dense/model.safetensors: the weights do not fit .* \(1 of another shape: "
        r"linear.weight is \(8, 15\), not \(8, 16\)\)\. The sizes in config.json",
    ),
    "published contextual": (
        lambda f: contextual(f, backbone_config="absent"),
        "contextual model without `backbone_config`",
    ),
    "contextual variant": (
        lambda f: contextual(
            f, transductive_tokens_per_document=2, autoregressive_backbone=True
        ),
        "autoregressive_backbone: True .*; transductive_tokens_per_document: 2",
    ),
    "contextual rotary": (
        lambda f: contextual(f, context_rotary="heads"),
        "context_rotary is 'heads', not one of",
    ),
    "contextual key missing": (
        lambda f: contextual(f, soft_tokens="absent"),
        "keys missing: soft_tokens",
    ),
    "contextual weights missing": (
        lambda f: contextual(f),
        r"model.safetensors: .* \(\d+ missing: first_stage_model.* and \d+ more; "
        "21 unexpected: embed.* The names are those of another architecture",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_say_what_is_wrong(folder, case):
    spoil, message = BAD[case]
    other = spoil(folder)
    target = folder / other if isinstance(other, str) else folder
    with pytest.raises(ValueError, match=message) as error:
        from_pretrained(target)
    assert str(folder) in str(error.value)


def test_activations_are_floats(folder):
    with pytest.raises(ValueError, match="dtype int8: activations need floats"):
        from_pretrained(folder, dtype="int8")


def test_layers_are_for_single_encoders(folder):
    contextual(folder)
    with pytest.raises(ValueError, match="loaded whole"):
        from_pretrained(folder, layers=1)


def test_models_need_neither_torch_nor_transformers(folder):
    code = (
        "import sys, cdejax.models as m; m.from_pretrained(sys.argv[1]); "
        "print(sorted({'torch', 'transformers', 'sentence_transformers'} "
        "& set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def sharded(folder):
    """Splits a folder's weights over two files and an index, as transformers does."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for number, part in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file({key: tensors[key] for key in part}, folder / name)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_sharded_weights_are_joined(folder):
    whole = to_state_dict(biencoder(folder))
    sharded(folder)
    again = to_state_dict(biencoder(folder))
    assert whole.keys() == again.keys()
    for name, tensor in whole.items():
        np.testing.assert_array_equal(again[name], tensor)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f, i: (f / "model-00002-of-00002.safetensors").unlink(),
            "missing: mod",
        ),
        (lambda f, i: i["weight_map"].popitem(), "and the index differ in"),
        (lambda f, i: i.pop("weight_map"), "no `weight_map`"),
        (lambda f, i: i["weight_map"].update(a="../b.safetensors"), "no `weight_map`"),
    ],
)
def test_shards_that_do_not_fit_their_index_are_refused(folder, damage, message):
    index = sharded(folder)
    damage(folder, index)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        biencoder(folder)
