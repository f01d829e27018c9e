"""BERT's config.json and tensor names, as in transformers' BertModel."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture, LearnedPositions
from cdejax.models.checkpoints.config import Raw, read_fields, require_values
from cdejax.models.checkpoints.table import Entry, Table, linear, norm, repeated
from cdejax.models.encoders.bert import Bert, BertConfig

_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
}


def read(raw: Raw, source: str) -> BertConfig:
    """Reads BERT's sizes; raises ValueError for unsupported variants."""
    require_values(raw, _FIXED, source)
    return read_fields(BertConfig, raw, source)


def write(config: BertConfig) -> dict[str, Any]:
    """`config.json` for BertModel."""
    kind = {"architectures": ["BertModel"], "model_type": "bert"}
    return {**kind, **dataclasses.asdict(config), "hidden_act": "gelu"}


def table(config: BertConfig) -> Table:
    """BERT's weights, without a prefix."""
    return [
        Entry("word", ("embeddings.word_embeddings.weight",)),
        Entry("position", ("embeddings.position_embeddings.weight",)),
        Entry("token_type", ("embeddings.token_type_embeddings.weight",)),
        *norm("norm", "embeddings.LayerNorm"),
        *repeated(LAYER, config.num_hidden_layers, "layers", "encoder.layer"),
    ]


LAYER = [
    *linear(
        "attention.qkv", *(f"attention.self.{n}" for n in ("query", "key", "value"))
    ),
    *linear("attention.out", "attention.output.dense"),
    *norm("attention_norm", "attention.output.LayerNorm"),
    *linear("up", "intermediate.dense"),
    *linear("down", "output.dense"),
    *norm("mlp_norm", "output.LayerNorm"),
]
"""The weights of a BERT layer; RoBERTa's are the same."""

BERT = Architecture(
    model_types={"bert": "BertTokenizer"},
    config=BertConfig,
    encoder=Bert,
    read=read,
    write=write,
    table=table,
    layers=("encoder.layer",),
    positions=LearnedPositions(),
    torch_twin="BertModel",
    prefixes=("bert.",),
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    dropped=r"(cls|pooler)\..*|embeddings\.position_ids",
    # Otherwise transformers adds a pooler and reports its weights as missing.
    model_args={"add_pooling_layer": False},
)
