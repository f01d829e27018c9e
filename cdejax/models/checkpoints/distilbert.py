"""DistilBERT's config.json and tensor names, as in transformers' DistilBertModel."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture, LearnedPositions
from cdejax.models.checkpoints.config import Raw, read_fields, require_values
from cdejax.models.checkpoints.table import Entry, Table, linear, norm, repeated
from cdejax.models.encoders.distilbert import DistilBert, DistilBertConfig

_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}


def read(raw: Raw, source: str) -> DistilBertConfig:
    """Reads DistilBERT's sizes; raises ValueError for unsupported variants.

    `sinusoidal_pos_embds` is ignored: it concerns only the initialisation of positions,
    which are among the weights.
    """
    require_values(raw, {"activation": "gelu"}, source)
    return read_fields(DistilBertConfig, raw, source, _KEYS)


def write(config: DistilBertConfig) -> dict[str, Any]:
    """`config.json` for DistilBertModel."""
    values = {_KEYS.get(k, k): v for k, v in dataclasses.asdict(config).items()}
    kind = {"architectures": ["DistilBertModel"], "model_type": "distilbert"}
    return {**kind, **values, "activation": "gelu"}


def table(config: DistilBertConfig) -> Table:
    """DistilBERT's weights, without a prefix."""
    layer = [
        *linear("attention.qkv", *(f"attention.{n}_lin" for n in "qkv")),
        *linear("attention.out", "attention.out_lin"),
        *norm("attention_norm", "sa_layer_norm"),
        *linear("up", "ffn.lin1"),
        *linear("down", "ffn.lin2"),
        *norm("mlp_norm", "output_layer_norm"),
    ]
    return [
        Entry("word", ("embeddings.word_embeddings.weight",)),
        Entry("position", ("embeddings.position_embeddings.weight",)),
        *norm("norm", "embeddings.LayerNorm"),
        *repeated(layer, config.num_hidden_layers, "layers", "transformer.layer"),
    ]


DISTILBERT = Architecture(
    model_types={"distilbert": "BertTokenizer"},
    config=DistilBertConfig,
    encoder=DistilBert,
    read=read,
    write=write,
    table=table,
    layers=("transformer.layer",),
    positions=LearnedPositions(),
    torch_twin=None,
    prefixes=("distilbert.",),
    dropped=r"vocab_(transform|layer_norm|projector)\..*|embeddings\.position_ids",
)
