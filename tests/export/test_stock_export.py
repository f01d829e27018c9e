"""A biencoder leaves as stock modules that give our embeddings."""

import json
import subprocess
import sys

import numpy as np
import pytest

from cdejax.export import export_model
from cdejax.models.pretrained.load import from_pretrained
from tests.models.oracles import run

from .conftest import MAX_LENGTH, PROMPTS, cosines, small_biencoder

MODELS = {
    "bert-mean": ("bert", {}),
    "bert-cls-mlp": ("bert", {"pooling": "cls", "head": "mlp"}),
    "nomic-mean-residual": ("nomic_bert", {"head": "mlp", "residual": True}),
    "nomic-last": ("nomic_bert", {"pooling": "last"}),
    "bert-smaller": ("bert", {"head": "mlp", "head_sizes": (40, 24)}),
}


def export(model, minilm, folder, **metadata):
    return export_model(
        model, minilm, folder, prompts=PROMPTS, max_length=MAX_LENGTH, metadata=metadata
    )


@pytest.fixture(scope="module", params=MODELS)
def exported(request, minilm, tmp_path_factory):
    kind, settings = MODELS[request.param]
    model = small_biencoder(kind, **settings)
    folder = tmp_path_factory.mktemp("stock") / request.param
    return model, export(model, minilm, folder)


def test_sentence_transformers_gives_our_embeddings(exported, texts, tokens):
    from sentence_transformers import SentenceTransformer

    model, folder = exported
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == MAX_LENGTH
    assert theirs.prompts == PROMPTS
    assert theirs.similarity_fn_name == "cosine"
    encode = {"query": theirs.encode_query, "document": theirs.encode_document}
    for side, prompt in PROMPTS.items():
        ours = np.asarray(run(model, *tokens(folder, texts, prompt)))
        got = encode[side](texts, batch_size=16)
        assert cosines(ours, got).min() >= 0.99999
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)
    plain = np.asarray(run(model, *tokens(folder, texts)))
    assert cosines(plain, theirs.encode(texts)).min() >= 0.99999


def test_weights_have_the_native_names(exported):
    from transformers import AutoModel

    _, folder = exported
    _, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    missing = {name for name in report["missing_keys"] if "pooler" not in name}
    assert not missing
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert not list(folder.rglob("*.py"))


def test_read_back(exported, texts, tokens):
    model, folder = exported
    ids, mask = tokens(folder, texts)
    again = run(from_pretrained(folder), ids, mask)
    np.testing.assert_allclose(again, run(model, ids, mask), atol=1e-6, rtol=0)


def test_fresh_process_reads_it_back(minilm, tmp_path, texts, tokens):
    model = small_biencoder("nomic_bert", head="mlp")
    folder = export(model, minilm, tmp_path / "model")
    ids, mask = tokens(folder, texts)
    np.savez(tmp_path / "in.npz", ids=ids, mask=mask)
    code = (
        "import sys, jax, numpy as np;"
        "from cdejax.models.pretrained.load import from_pretrained;"
        "a = np.load(sys.argv[1]); m = from_pretrained(sys.argv[2]);"
        "np.save(sys.argv[3], jax.jit(lambda: m(a['ids'], a['mask']))());"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    paths = [tmp_path / "in.npz", folder, tmp_path / "out.npy"]
    subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=True)
    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), run(model, ids, mask), atol=1e-6, rtol=0
    )


def test_real_weights(minilm, tmp_path, texts, tokens):
    from sentence_transformers import SentenceTransformer

    model = from_pretrained(minilm)
    folder = export(model, minilm, tmp_path / "model", base_model="all-MiniLM-L6-v2")
    theirs = SentenceTransformer(str(folder), device="cpu")
    ours = np.asarray(run(model, *tokens(folder, texts, PROMPTS["query"])))
    assert cosines(ours, theirs.encode_query(texts)).min() >= 0.99999


def test_tokenizer_files_fit_the_export(minilm, tmp_path):
    folder = export(small_biencoder("bert"), minilm, tmp_path / "model")
    stored = json.loads((folder / "tokenizer.json").read_text())
    assert stored["truncation"]["max_length"] == MAX_LENGTH
    assert stored["padding"]["strategy"] == "BatchLongest"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == MAX_LENGTH
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    assert settings["max_seq_length"] == MAX_LENGTH
