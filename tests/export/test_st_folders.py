"""Folders of sentence-transformers: there and back again, from either side."""

import inspect
import json
import shutil
import statistics
import subprocess
from typing import Any, get_args

import numpy as np
import pytest
from flax import nnx

import cdejax
from cdejax.export import export_model
from cdejax.models import BiEncoder, from_pretrained
from cdejax.models.modules import Chain, Dense, LayerNorm, Normalize
from cdejax.models.pretrained.settings import read_settings
from cdejax.models.similarity import Similarity
from tests.models.oracles import bert, draw, torch

from .conftest import PROMPTS, cosines, randomised, small_encoder

sentence_transformers = pytest.importorskip("sentence_transformers")
st = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
SIZE = 32
ALL_PROMPTS = {**PROMPTS, "clustering": "Identify the topic: ", "nothing": ""}
MODES = ["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]


def docstrings(count: int) -> list[str]:
    """Real text cut to several lengths, from a word to more than any limit."""
    modules: list[Any] = [inspect, json, shutil, statistics, subprocess]
    members = [member for module in modules for member in vars(module).values()]
    texts = sorted({inspect.getdoc(member) or "" for member in members}, key=len)
    long = "\n".join(texts)
    rng = np.random.default_rng(0)
    lengths = [
        1,
        4,
        12,
        40,
        90,
        250,
        20,
        60,
        130,
        2,
        30,
        160,
        8,
        500,
        50,
        70,
        900,
        2500,
    ]
    starts = rng.integers(0, len(long) - max(lengths), count)
    return [
        long[s : s + lengths[i % len(lengths)]] for i, s in enumerate(starts.tolist())
    ]


TEXTS = ["", *docstrings(6), "far more than the limit " * 20]


@pytest.fixture(scope="module")
def transformer(minilm, tmp_path_factory):
    """Their Transformer module: a random BERT with MiniLM's tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("bert")
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 1, "vocab_size": 30522}
    bert(**sizes).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return st.Transformer(
        str(folder),
        max_seq_length=40,
        model_kwargs={"add_pooling_layer": False},
    )


def assemble(folder, modules, **settings):
    """A model of theirs and the folder that it saves."""
    settings = {"prompts": dict(ALL_PROMPTS)} | settings
    model = sentence_transformers.SentenceTransformer(
        modules=modules, device="cpu", **settings
    )
    model.save(str(folder), create_model_card=False)
    return model


def opened(folder):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


def exported(folder, out):
    """A folder through ours."""
    model = from_pretrained(folder)
    return export_model(model, folder, out, **read_settings(folder))


def vectors(model):
    """Their vectors by kind of text."""
    return {
        "query": model.encode_query(TEXTS),
        "document": model.encode_document(TEXTS),
        "clustering": model.encode(TEXTS, prompt_name="clustering"),
    }


def same(folder, theirs):
    """Ours equal theirs, un-normalised and normalised; so does theirs of our export."""
    ours = cdejax.load(folder)
    all_expected = vectors(theirs)
    for kind, expected in all_expected.items():
        raw = ours.encode(TEXTS, kind, normalize=False)
        np.testing.assert_allclose(raw, expected, atol=2e-5)
        assert cosines(ours.encode(TEXTS, kind), expected).min() >= 0.99999
    again = opened(exported(folder, folder / "through-ours"))
    for kind, found in vectors(again).items():
        np.testing.assert_allclose(found, all_expected[kind], atol=2e-5)
    return ours, again, all_expected


@pytest.mark.parametrize("mode", [*MODES, ("cls", "mean"), ("mean", "max", "cls")])
def test_poolings(transformer, tmp_path, mode):
    include = mode in ("mean", "cls", ("cls", "mean"))
    pooling = st.Pooling(SIZE, mode, include_prompt=include)
    theirs = assemble(tmp_path, [transformer, pooling])
    ours, again, expected = same(tmp_path, theirs)
    assert again[1].get_config_dict() == pooling.get_config_dict()
    assert ours.dim == theirs.get_embedding_dimension()
    # prompts count, pooled or not
    assert abs(expected["query"] - expected["clustering"]).max() > 1e-3


def dense(features, out, activation, seed=0, **settings):
    settings["activation_function"] = getattr(torch.nn, activation)()
    return draw(st.Dense(features, out, **settings), seed)


HEADS = {
    "dense": [dense(SIZE, 24, "Tanh"), st.Normalize()],
    "residual": [dense(SIZE, 24, "ReLU", use_residual=True)],
    "mlp": [dense(SIZE, 48, "GELU"), dense(48, 24, "Identity", 1), st.Normalize()],
    "norm": [draw(st.LayerNorm(SIZE))],
    "normalised between": [
        st.Normalize(),
        dense(SIZE, 24, "SiLU", bias=False),
        draw(st.LayerNorm(24)),
        st.Normalize(),
    ],
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(transformer, tmp_path, name):
    modules = [transformer, st.Pooling(SIZE), *HEADS[name]]
    theirs = assemble(tmp_path, modules)
    _, again, _ = same(tmp_path, theirs)
    assert [type(m) for m in again] == [type(m) for m in theirs]
    before, after = (model.state_dict() for model in (theirs, again))
    assert set(before) == set(after)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_settings(transformer, tmp_path):
    modules = [transformer, st.Pooling(SIZE), dense(SIZE, 24, "Tanh"), st.Normalize()]
    settings = {
        "default_prompt_name": "clustering",
        "similarity_fn_name": "manhattan",
        "truncate_dim": 7,
    }
    theirs = assemble(tmp_path, modules, **settings)
    ours, again, expected = same(tmp_path, theirs)
    for name, value in (settings | {"prompts": ALL_PROMPTS}).items():
        assert getattr(ours, name) == getattr(again, name) == value
    assert ours.max_length == again.max_seq_length == theirs.max_seq_length == 40
    assert ours.dim == 7
    shorter = theirs.encode_query(TEXTS, normalize_embeddings=True)
    found = ours.encode(TEXTS, "query", normalize=True)
    np.testing.assert_allclose(found, shorter, atol=2e-5)
    for function in get_args(Similarity):
        theirs.similarity_fn_name = ours.similarity_fn_name = function
        scores = theirs.similarity(expected["query"], expected["document"]).numpy()
        found = ours.similarity(expected["query"], expected["document"])
        np.testing.assert_allclose(found, scores, atol=1e-5)


def test_vectors_keep_their_length_where_it_counts(transformer, tmp_path):
    theirs = assemble(
        tmp_path, [transformer, st.Pooling(SIZE)], similarity_fn_name="dot"
    )
    found = cdejax.load(tmp_path).encode(TEXTS, "query")
    np.testing.assert_allclose(found, vectors(theirs)["query"], atol=2e-5)


def test_older_layout(transformer, tmp_path):
    """Encoder in 0_Transformer, old class paths, flags of poolings."""
    modules = [transformer, st.Pooling(SIZE, ("cls", "mean")), st.Normalize()]
    theirs = assemble(tmp_path, modules)
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    for file in [file for file in tmp_path.iterdir() if file.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(inner / file.name)
    listed = json.loads((tmp_path / "modules.json").read_text())
    for entry in listed:
        entry["type"] = f"sentence_transformers.models.{entry['type'].split('.')[-1]}"
    listed[0]["path"] = inner.name
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    config = {"word_embedding_dimension": SIZE, **flags}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    ours = cdejax.load(tmp_path)
    for kind, expected in vectors(theirs).items():
        np.testing.assert_allclose(
            ours.encode(TEXTS, kind, normalize=False), expected, atol=2e-5
        )
    expected = vectors(theirs)["query"]
    for folder in (tmp_path, exported(tmp_path, tmp_path / "through-ours")):
        found = vectors(opened(folder))["query"]
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_lower_casing_in_front_of_the_tokenizer(transformer, minilm, tmp_path):
    assemble(tmp_path, [transformer, st.Pooling(SIZE)])
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    stored["normalizer"]["lowercase"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["do_lower_case"] = False
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    cased = cdejax.load(tmp_path).encode(["Some Text İ"])
    file = tmp_path / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_lower_case": True}))
    theirs = opened(tmp_path)
    expected = theirs.encode(["Some Text İ"], prompt=PROMPTS["document"])
    for folder in (tmp_path, exported(tmp_path, tmp_path / "through-ours")):
        ours = cdejax.load(folder).encode(["Some Text İ"], normalize=False)
        np.testing.assert_allclose(ours, expected, atol=2e-5)
    again = opened(tmp_path / "through-ours").encode_document(["Some Text İ"])
    np.testing.assert_allclose(again, expected, atol=2e-5)
    assert cosines(cased, expected)[0] < 0.999


def test_ours_theirs_ours(minilm, tmp_path):
    def build():
        rngs = nnx.Rngs(0)
        head = Chain(
            [
                Dense(96, 24, rngs, activation="GELU", residual=True),
                Normalize(24),
                LayerNorm(24),
                Dense(24, 10, rngs, bias=False),
            ]
        )
        encoder = small_encoder("nomic_bert", 1)
        return BiEncoder(encoder, "max+mean", head, include_prompt=False)

    folder = export_model(
        randomised(build),
        minilm,
        tmp_path / "one",
        prompts=ALL_PROMPTS,
        max_length=48,
        similarity_fn_name="euclidean",
        truncate_dim=6,
        normalized=False,
    )
    first = cdejax.load(folder)
    opened(folder).save(str(tmp_path / "two"), create_model_card=False)
    second = cdejax.load(tmp_path / "two")
    assert second.hash == first.hash
    assert read_settings(tmp_path / "two") == read_settings(folder)
    for kind in ALL_PROMPTS:
        np.testing.assert_array_equal(
            second.encode(TEXTS, kind), first.encode(TEXTS, kind)
        )


def test_minilm_ours_theirs_ours(minilm, tmp_path):
    folder = exported(minilm, tmp_path / "one")
    first = cdejax.load(folder)
    opened(folder).save(str(tmp_path / "two"), create_model_card=False)
    second = cdejax.load(tmp_path / "two")
    assert second.hash == first.hash == cdejax.load(minilm).hash
    assert read_settings(tmp_path / "two") == read_settings(folder)
    np.testing.assert_array_equal(second.encode(TEXTS), first.encode(TEXTS))


def test_minilm_on_texts_of_all_lengths(minilm, tmp_path):
    texts = docstrings(200)
    ours, theirs = cdejax.load(minilm), opened(minilm)
    expected = theirs.encode(texts)
    assert max(len(row) for row in ours.tokenizer.encode(texts)[0]) > 256
    assert cosines(ours.encode(texts), expected).min() >= 0.99999
    again = opened(exported(minilm, tmp_path / "model"))
    assert cosines(again.encode(texts[:40]), expected[:40]).min() >= 0.99999
