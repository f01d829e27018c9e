"""A contextual model with a context folded in is an ONNX graph of text alone."""

import numpy as np
import pytest

import cdejax
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.export.baked import export_baked
from cdejax.export.onnx import MODEL, add_onnx
from cdejax.export.onnx_check import OnnxEncoder

from .conftest import MAX_LENGTH, PROMPTS, small_contextual

pytest.importorskip("onnxscript")


@pytest.fixture(scope="module", params=["bert", "nomic_bert"])
def baked(request, minilm, texts, tmp_path_factory):
    """The unbaked embedder, its context, and the baked folder with its graph."""
    settings = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    model = small_contextual(request.param)
    embedder = Embedder(model, Tokenizer.load(minilm), **settings)
    context = embedder.context(texts[:30], size=5)
    folder = tmp_path_factory.mktemp("baked") / request.param
    add_onnx(export_baked(embedder, context, folder))
    return embedder, context, folder


def test_the_graph_gives_the_vectors_of_model_and_context(baked, texts):
    embedder, context, folder = baked
    encoder = OnnxEncoder(folder / "onnx" / MODEL, cdejax.load(folder))
    for kind in PROMPTS:
        ours = embedder.encode(texts[:30], kind, context, 1)
        for size, left in ((1, False), (7, False), (7, True)):
            theirs = encoder.encode(texts[:30], kind, size, left=left)
            np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=0)
    short = encoder.run(np.full((1, 1), 2000), np.ones((1, 1), np.int64))
    assert np.isfinite(short).all()


def test_the_graph_has_one_output(baked):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(baked[2] / "onnx" / MODEL))
    assert [i.name for i in session.get_inputs()] == ["input_ids", "attention_mask"]
    [output] = session.get_outputs()
    assert (output.name, output.shape) == (
        "sentence_embedding", ["batch", baked[0].dim]
    )  # fmt: skip
