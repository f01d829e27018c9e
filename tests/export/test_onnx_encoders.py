"""Every other encoder of one module as an ONNX graph (seconds each: marked slow)."""

import json
import shutil
from typing import Any

import pytest
from flax import nnx

from cdejax.export import export_model
from cdejax.export.onnx import add_onnx
from cdejax.models import (
    BiEncoder,
    DistilBert,
    DistilBertConfig,
    ModernBert,
    ModernBertConfig,
    MPNet,
    MPNetConfig,
    Roberta,
    RobertaConfig,
)

from .conftest import MAX_LENGTH, PROMPTS, randomised

pytest.importorskip("onnxscript")
SIZES: dict[str, Any] = {
    "vocab_size": 30528,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
# Texts are longer than the window.
MODERN: dict[str, Any] = {"pad_token_id": 1, "local_attention": 8}
ENCODERS = {
    "distilbert": lambda rngs: DistilBert(DistilBertConfig(**SIZES), rngs),
    "roberta": lambda rngs: Roberta(RobertaConfig(**SIZES), rngs),
    "mpnet": lambda rngs: MPNet(MPNetConfig(**SIZES), rngs),
    "modernbert": lambda rngs: ModernBert(ModernBertConfig(**SIZES, **MODERN), rngs),
}


@pytest.fixture
def tokenizer(minilm, tmp_path):
    """MiniLM's, padding with id 1: RoBERTa and MPNet count positions from its ids."""
    folder = shutil.copytree(minilm, tmp_path / "tokenizer")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"pad_token": "[unused0]"}
    path.write_text(json.dumps(config))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_graphs_give_our_vectors(name, tokenizer, tmp_path):
    model = randomised(lambda: BiEncoder(ENCODERS[name](nnx.Rngs(0))))
    folder = export_model(
        model, tokenizer, tmp_path / "m", prompts=PROMPTS, max_length=MAX_LENGTH
    )
    add_onnx(folder)  # compares, and raises above 1e-4
