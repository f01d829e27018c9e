"""ONNX graphs give the vectors of our models, whatever batch, length and padding."""

import json
import logging
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx

from cdejax.cli.main import main
from cdejax.embedding.load import load
from cdejax.export import export_model, onnx_graph
from cdejax.export import onnx as exporter
from cdejax.export.onnx import MODEL, QUANTIZED, add_onnx
from cdejax.export.onnx_check import OnnxEncoder, Reference
from cdejax.models import BiEncoder

from .conftest import (
    MAX_LENGTH,
    PROMPTS,
    randomised,
    small_biencoder,
    small_contextual,
    small_encoder,
    unit,
)

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


def model(name):
    """A case's model. Two layers: tracing takes a second for each."""
    kind, settings = MODELS[name]
    return randomised(
        lambda: BiEncoder(small_encoder(kind, 2), rngs=nnx.Rngs(1), **settings)
    )


@pytest.fixture(scope="module")
def plain(minilm, tmp_path_factory):
    """A folder without graphs. Tests copy it."""
    return export(model("bert-mean"), minilm, tmp_path_factory.mktemp("p") / "m")


@pytest.fixture(scope="module")
def copied(plain, tmp_path_factory):
    """A copy of it with graphs, made beside what a kill left; and what was said."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("cdejax")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    folder = tmp_path_factory.mktemp("c")
    (folder / ".copy.partial" / "onnx").mkdir(parents=True)
    (folder / ".copy.partial" / "onnx" / "left.onnx").write_text("half")
    place = add_onnx(plain, folder / "copy", int8=True)
    logger.setLevel(level)
    logger.removeHandler(handler)
    return place, said


CASES = ["bert-mean", "bert-cls-mlp", "nomic-mean-residual"]


@pytest.fixture(
    scope="module", params=[*CASES, pytest.param("nomic-last", marks=pytest.mark.slow)]
)
def made(request, copied, minilm, tmp_path_factory):
    """A model, its folder, and the graphs beside it."""
    ours = model(request.param)
    if request.param == "bert-mean":
        return ours, copied[0].parent, copied[0]
    folder = export(ours, minilm, tmp_path_factory.mktemp("onnx") / request.param)
    return ours, folder, add_onnx(folder)


@pytest.fixture
def no_trace(copied, monkeypatch):
    """Tracing takes seconds: give the graph that was traced already."""

    def copy(graph, file):
        shutil.copyfile(copied[0] / MODEL, file)

    monkeypatch.setattr(onnx_graph, "write_graph", copy)
    monkeypatch.setattr(onnx_graph, "stock_graph", lambda folder: None)


@pytest.fixture
def traced(copied, monkeypatch):
    """The same, for what `write_graph` does with the graph once it is traced."""
    import onnx_ir
    import torch

    def export(*_, **__):
        return SimpleNamespace(model=onnx_ir.load(copied[0] / MODEL))

    monkeypatch.setattr(torch.onnx, "export", export)


def draw(batch, length, seed=0):
    """Real tokens and padding; the first row is full, the last has one token."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, batch)
    lengths[0], lengths[-1] = length, 1 if batch > 1 else length
    mask = np.arange(length) < lengths[:, None]
    ids = np.where(mask, rng.integers(1000, 30000, mask.shape), 0)
    return ids.astype(np.int64), mask.astype(np.int64)


def to_the_left(ids, mask):
    """The same rows, padded on the left."""
    shift = mask.shape[1] - mask.sum(1)
    rows = [
        np.roll(np.stack(pair), by, 1)
        for *pair, by in zip(ids, mask, shift, strict=True)
    ]
    return tuple(np.stack(rows).swapaxes(0, 1))


def test_graphs_give_our_vectors(made):
    model, folder, place = made
    assert (place / MODEL).is_file()
    encoder = OnnxEncoder(place / MODEL, load(folder))
    drawn = [draw(*shape) for shape in SHAPES]
    wide = [np.pad(a, ((0, 0), (0, MAX_LENGTH - a.shape[1]))) for b in drawn for a in b]
    ids, mask = np.concatenate(wide[::2]), np.concatenate(wide[1::2])
    ours = unit(np.asarray(model(ids, mask.astype(bool))))  # one shape: compiled once
    ends = np.cumsum([batch for batch, _ in SHAPES])
    for (ids, mask), vectors in zip(drawn, np.split(ours, ends[:-1]), strict=True):
        for fed in ((ids, mask), to_the_left(ids, mask)):
            theirs = encoder.run(*fed)
            np.testing.assert_allclose(np.linalg.norm(theirs, axis=1), 1, atol=1e-5)
            np.testing.assert_allclose(theirs, vectors, atol=1e-5, rtol=0)


def test_prompts_and_texts(made, texts):
    _, folder, place = made
    embedder = load(folder)
    encoder = OnnxEncoder(place / MODEL, embedder)
    for kind in PROMPTS:
        ours = embedder.encode(texts, kind, batch_size=1)  # one size to compile
        np.testing.assert_allclose(
            encoder.encode(texts, kind, 16), ours, atol=1e-5, rtol=0
        )


def test_inputs_and_outputs_are_those_that_others_look_for(made):
    import onnxruntime

    _, folder, place = made
    assert place == folder / "onnx"
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
    np.testing.assert_allclose(got, np.asarray(wanted), atol=1e-5, rtol=0)


def test_a_row_without_tokens_is_finite(made):
    _, folder, place = made
    ids, mask = draw(3, 5)
    mask[1] = 0
    assert np.isfinite(OnnxEncoder(place / MODEL, load(folder)).run(ids, mask)).all()


def test_int8_is_close_and_small(copied, plain):
    place, said = copied
    assert [path.name for path in place.parents[1].iterdir()] == ["copy"]
    copied_files = {path.name for path in place.parent.iterdir()} - {"onnx"}
    assert copied_files == {path.name for path in plain.iterdir()}
    assert not (place / "left.onnx").exists()
    assert not (plain / "onnx").exists()
    assert (place / QUANTIZED).stat().st_size < 0.4 * (place / MODEL).stat().st_size
    ids, mask = draw(6, 20)
    embedder = load(plain)
    exact, rounded = (
        OnnxEncoder(place / file, embedder).run(ids, mask)
        for file in (MODEL, QUANTIZED)
    )
    assert 0.9 < (exact * rounded).sum(1).min() < 1 - 1e-7
    assert any(text.startswith("model.onnx: differs by") for text in said)
    assert any(text.startswith("model_quantized.onnx: cosine to") for text in said)
    assert not [text for text in said if "cut" in text]


def test_weights_above_2_gb_lie_beside_the_graph(plain, traced, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "SINGLE_FILE_BYTES", 1000)
    made = tmp_path / "made"
    made.mkdir()
    onnx_graph.write_graph(onnx_graph.stock_graph(plain), made / MODEL)
    exporter.quantize(made / MODEL, made / QUANTIZED)
    assert sorted(path.name for path in made.iterdir()) == sorted(exporter.FILES)
    assert (made / MODEL).stat().st_size < 0.1 * (made / f"{MODEL}_data").stat().st_size
    moved = made.rename(tmp_path / "elsewhere")
    reference = Reference(load(plain))
    assert reference.difference(moved / MODEL) < 1e-5
    assert reference.cosines(moved / QUANTIZED).min() > 0.9


def test_graphs_are_replaced_together_and_only_when_asked(
    copied, plain, no_trace, tmp_path
):
    folder = shutil.copytree(copied[0].parent, tmp_path / "m")
    place = folder / "onnx"
    for name in ("model_O4.onnx", f"{MODEL}_data"):
        (place / name).touch()
    with pytest.raises(ValueError, match=r"model.onnx: exists; add --overwrite"):
        add_onnx(folder)
    assert add_onnx(folder, overwrite=True) == place
    # not the 8-bit graph of other weights, nor a file that is not ours
    assert {path.name for path in place.iterdir()} == {MODEL, "model_O4.onnx"}


def test_wrong_vectors_leave_no_graph(copied, plain, no_trace, tmp_path, monkeypatch):
    folder = shutil.copytree(plain, tmp_path / "m")
    other = load(export(small_biencoder("bert", pooling="cls"), plain, tmp_path / "o"))
    monkeypatch.setattr(exporter, "load", lambda path, dtype: other)
    before = sorted(folder.iterdir())
    wrong = r"query vectors of its ONNX graph differ by .*; no graph was kept"
    with pytest.raises(ValueError, match=wrong):
        add_onnx(folder)
    assert sorted(folder.iterdir()) == before
    with pytest.raises(ValueError, match=wrong):
        add_onnx(folder, tmp_path / "n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "o"]


def test_a_pooling_without_the_prompt_is_refused(plain, tmp_path):
    folder = shutil.copytree(plain, tmp_path / "m")
    path = folder / "1_Pooling" / "config.json"
    config = json.loads(path.read_text()) | {"include_prompt": False}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="leaves the prompt out"):
        add_onnx(folder)
    assert not (folder / "onnx").exists()


def test_a_shorter_embedding_is_cut_by_its_reader(copied, tmp_path):
    """`truncate_dim` is a setting of sentence-transformers, not of the modules."""
    folder = shutil.copytree(copied[0].parent, tmp_path / "m")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 16}))
    embedder = load(folder)
    encoder = OnnxEncoder(folder / "onnx" / MODEL, embedder)
    ours, theirs = embedder.encode(["a b c"]), encoder.encode(["a b c"])
    assert theirs.shape == (1, 16)
    np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=0)


def test_a_fixed_size_is_refused(tmp_path):
    import torch

    class Fixing(torch.nn.Module):
        def forward(self, features):
            ids = features["input_ids"].float()
            return {"sentence_embedding": torch.ones(len(ids), 3) + ids.sum(1)[:, None]}

    graph = onnx_graph.TextGraph([Fixing()], learned_positions=False)
    with pytest.raises(ValueError, match=r"input_ids was traced with the fixed shape"):
        onnx_graph.write_graph(graph, tmp_path / MODEL)
    assert not list(tmp_path.iterdir())


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
        "pip install '.[onnx]' in cdejax's checkout\n"
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
    with pytest.raises(ValueError, match="is inside the folder of the model"):
        add_onnx(plain, plain / "copy")


def test_the_exporter_is_not_loaded_before_it_is_needed():
    import subprocess

    code = (
        "import sys, cdejax.cli.main, cdejax.export.onnx;"
        "assert not {'torch', 'onnx', 'onnxruntime', 'onnxscript'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
