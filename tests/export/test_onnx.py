"""ONNX graphs give the vectors of our models, whatever batch, length and padding."""

import json
import logging
import shutil
import sys

import numpy as np
import pytest

from cdejax.cli import main
from cdejax.embedder import load
from cdejax.export import export_model
from cdejax.export import onnx as exporter
from cdejax.export.onnx import MODEL, QUANTIZED, add_onnx
from cdejax.export.onnx_check import OnnxEncoder, largest_difference

from .conftest import MAX_LENGTH, PROMPTS, small_biencoder, small_contextual, unit

pytest.importorskip("onnxscript")
MODELS = {
    "bert-mean": ("bert", {}),
    "bert-cls-mlp": ("bert", {"pooling": "cls", "head": "mlp", "head_sizes": (40, 24)}),
    "nomic-mean-residual": ("nomic_bert", {"head": "mlp", "residual": True}),
    "nomic-last": ("nomic_bert", {"pooling": "last"}),
}
SHAPES = [(1, 1), (1, MAX_LENGTH), (5, 1), (3, 17), (8, 2)]


def export(model, minilm, folder):
    return export_model(model, minilm, folder, prompts=PROMPTS, max_length=MAX_LENGTH)


@pytest.fixture(scope="module", params=MODELS)
def made(request, minilm, tmp_path_factory):
    kind, settings = MODELS[request.param]
    model = small_biencoder(kind, **settings)
    folder = export(model, minilm, tmp_path_factory.mktemp("onnx") / request.param)
    return model, folder, add_onnx(folder)


@pytest.fixture(scope="module")
def plain(minilm, tmp_path_factory):
    """A folder without graphs. Tests copy it."""
    return export(small_biencoder("bert"), minilm, tmp_path_factory.mktemp("p") / "m")


def draw(batch, length, left=False, seed=0):
    """Real tokens and padding; the first row is full, the last has one token."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, batch)
    lengths[0], lengths[-1] = length, 1 if batch > 1 else length
    mask = np.arange(length) < lengths[:, None]
    mask = mask[:, ::-1] if left else mask
    ids = np.where(mask, rng.integers(1000, 30000, mask.shape), 0)
    return ids.astype(np.int64), mask.astype(np.int64)


@pytest.mark.parametrize("left", [False, True])
def test_graphs_give_our_vectors(made, left):
    model, folder, place = made
    encoder = OnnxEncoder(place / MODEL, load(folder))
    for shape in SHAPES:
        ids, mask = draw(*shape, left)
        ours = unit(np.asarray(model(ids, mask.astype(bool))))
        theirs = encoder.run(ids, mask)
        np.testing.assert_allclose(np.linalg.norm(theirs, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=0)


def test_prompts_and_texts(made, texts):
    _, folder, place = made
    embedder = load(folder)
    encoder = OnnxEncoder(place / MODEL, embedder)
    for kind in PROMPTS:
        ours = embedder.encode(texts, kind)
        np.testing.assert_allclose(
            encoder.encode(texts, kind, 16), ours, atol=1e-5, rtol=0
        )


def test_inputs_and_outputs_are_those_that_others_look_for(made):
    import onnxruntime

    _, folder, place = made
    assert place == folder / "onnx"
    assert [path.name for path in place.iterdir()] == [MODEL]
    session = onnxruntime.InferenceSession(str(place / MODEL))
    inputs = {i.name: (i.type, i.shape) for i in session.get_inputs()}
    assert inputs == dict.fromkeys(
        ("input_ids", "attention_mask"), ("tensor(int64)", ["batch", "length"])
    )
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    outputs = {o.name: (o.type, o.shape) for o in session.get_outputs()}
    assert outputs == {
        "last_hidden_state": ("tensor(float)", ["batch", "length", hidden]),
        "sentence_embedding": ("tensor(float)", ["batch", load(folder).dim]),
    }


def test_token_states_serve_the_pooling_of_sentence_transformers(made):
    """What its ONNX backend does: the graph for the encoder, torch for the rest."""
    import onnxruntime
    import torch
    from sentence_transformers import SentenceTransformer

    _, folder, place = made
    ids, mask = draw(4, 9)
    session = onnxruntime.InferenceSession(str(place / MODEL))
    fed = {"input_ids": ids, "attention_mask": mask}
    tokens, wanted = session.run(["last_hidden_state", "sentence_embedding"], fed)
    features = {
        "token_embeddings": torch.tensor(tokens),
        "attention_mask": torch.tensor(mask),
    }
    for module in list(SentenceTransformer(str(folder), device="cpu"))[1:]:
        features = module(features)
    got = features["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-5, rtol=0)


def test_a_row_without_tokens_is_finite(made):
    _, folder, place = made
    ids, mask = draw(3, 5)
    mask[1] = 0
    assert np.isfinite(OnnxEncoder(place / MODEL, load(folder)).run(ids, mask)).all()


def test_int8_is_close_and_small(plain, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "cdejax"):
        place = add_onnx(plain, tmp_path / "copy", int8=True)
    assert place == tmp_path / "copy" / "onnx"
    assert not (plain / "onnx").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["copy"]
    assert (place / QUANTIZED).stat().st_size < 0.4 * (place / MODEL).stat().st_size
    ids, mask = draw(6, 20)
    both = [
        OnnxEncoder(place / f, load(plain)).run(ids, mask) for f in (MODEL, QUANTIZED)
    ]
    cosine = (both[0] * both[1]).sum(1)
    assert 0.9 < cosine.min() < 1 - 1e-7
    said = [record.getMessage() for record in caplog.records]
    assert any(m.startswith("model.onnx: differs by") for m in said)
    assert any(m.startswith("model_quantized.onnx: cosine to the model") for m in said)
    assert not [m for m in said if "cut" in m]


def test_weights_above_2_gb_lie_beside_the_graph(plain, tmp_path, monkeypatch):
    from cdejax.export import onnx_graph

    monkeypatch.setattr(onnx_graph, "SINGLE_FILE_BYTES", 1000)
    place = add_onnx(plain, tmp_path / "m", int8=True)
    assert {p.name for p in place.iterdir()} == {
        MODEL, f"{MODEL}_data", QUANTIZED, f"{QUANTIZED}.data"
    }  # fmt: skip
    moved = shutil.move(tmp_path / "m", tmp_path / "elsewhere")
    assert largest_difference(moved / "onnx" / MODEL, load(plain)) < 1e-5
    OnnxEncoder(moved / "onnx" / QUANTIZED, load(plain))
    add_onnx(moved, overwrite=True)
    assert {p.name for p in place.parents[1].glob("elsewhere/onnx/*")} == {
        MODEL, f"{MODEL}_data"
    }  # fmt: skip


def test_graphs_are_not_replaced_unasked(made):
    _, folder, place = made
    before = (place / MODEL).stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"model.onnx: exists; add --overwrite"):
        add_onnx(folder)
    assert (place / MODEL).stat().st_mtime_ns == before


def test_wrong_vectors_leave_no_graph(plain, tmp_path, monkeypatch):
    folder = shutil.copytree(plain, tmp_path / "m")
    other = load(export(small_biencoder("bert", pooling="cls"), plain, tmp_path / "o"))
    monkeypatch.setattr(exporter, "load", lambda path, dtype: other)
    with pytest.raises(ValueError, match=r"query vectors of its ONNX graph differ by"):
        add_onnx(folder)
    assert not [p.name for p in folder.iterdir() if "onnx" in p.name]
    with pytest.raises(ValueError, match="no graph was kept"):
        add_onnx(plain, tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_a_missing_library_is_one_clear_line(plain, monkeypatch, capsys):
    find = exporter.importlib.util.find_spec
    monkeypatch.setattr(
        exporter.importlib.util,
        "find_spec",
        lambda name: None if name in ("onnxscript", "onnx") else find(name),
    )
    with pytest.raises(SystemExit) as stop:
        main(["onnx", "--model", str(plain)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "cdejax: error: ONNX needs onnx, onnxscript, not installed here: "
        "pip install 'cdejax[onnx]'\n"
    )


def test_what_has_no_graph_is_refused(plain, minilm, tmp_path):
    contextual = export(small_contextual("bert"), minilm, tmp_path / "c")
    with pytest.raises(ValueError, match="contextual model reads a context"):
        add_onnx(contextual)
    with pytest.raises(
        ValueError, match=r"nowhere.: there is no folder|no such folder"
    ):
        add_onnx(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="exists and is not empty"):
        add_onnx(plain, contextual)
    with pytest.raises(ValueError, match="there is no folder"):
        add_onnx(plain, tmp_path / "a" / "b")


def test_the_exporter_is_not_loaded_before_it_is_needed():
    import subprocess

    code = (
        "import sys, cdejax.cli, cdejax.export.onnx;"
        "assert not {'torch', 'onnx', 'onnxruntime', 'onnxscript'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
