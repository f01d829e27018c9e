"""The models that a training step is measured with, random weights from a seed."""

from __future__ import annotations

from typing import Any, Literal

from flax import nnx

from cdejax.models import (
    Bert,
    BertConfig,
    BiEncoder,
    ContextualConfig,
    ContextualEncoder,
    NomicBert,
    NomicBertConfig,
)
from cdejax.runtime.mesh import local_mesh
from cdejax.runtime.platforms import default_dtype

Kind = Literal["biencoder", "contextual", "large"]
Model = BiEncoder | ContextualEncoder

_TOY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}

_LARGE: dict[str, Any] = {
    "hidden_size": 6144,
    "num_hidden_layers": 8,
    "num_attention_heads": 48,
    "intermediate_size": 24_576,
}


def build(kind: Kind, *, context: int, toy: bool, seed: int = 0) -> Model:
    """BERT-base, CDE over two NomicBERT-base, or a BERT of 3.8 billion parameters.

    Activations are bfloat16 on an accelerator.
    """
    sizes = _TOY if toy else _LARGE if kind == "large" else {}
    rngs, dtype = nnx.Rngs(seed), default_dtype(local_mesh())
    if kind != "contextual":
        return BiEncoder(Bert(BertConfig(**sizes), rngs, dtype))
    config = NomicBertConfig(**sizes)
    first, second = (NomicBert(config, rngs, dtype) for _ in range(2))
    settings = ContextualConfig(context_size=context)
    return ContextualEncoder(settings, first, second, rngs)


def vocabulary(kind: Kind, toy: bool) -> int:
    """Number of token ids."""
    if toy:
        return _TOY["vocab_size"]
    return (NomicBertConfig if kind == "contextual" else BertConfig)().vocab_size
