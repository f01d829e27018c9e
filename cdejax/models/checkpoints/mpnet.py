"""MPNet's config.json and tensor names, as in transformers' MPNetModel."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture, LearnedPositions
from cdejax.models.checkpoints.config import Raw, read_fields, require_values
from cdejax.models.checkpoints.table import Entry, Table, linear, norm, repeated
from cdejax.models.encoders.mpnet import MPNet, MPNetConfig

_FIXED = {
    "hidden_act": "gelu",
    "relative_attention_num_buckets": MPNetConfig.relative_attention_num_buckets,
}
# transformers' defaults, which differ from the values of mpnet-base.
_UNSAID = {"max_position_embeddings": 512, "layer_norm_eps": 1e-12}


def read(raw: Raw, source: str) -> MPNetConfig:
    """Reads MPNet's sizes; raises ValueError for unsupported variants."""
    require_values(raw, _FIXED, source)
    return read_fields(MPNetConfig, {**_UNSAID, **raw}, source)


def write(config: MPNetConfig) -> dict[str, Any]:
    """`config.json` for MPNetModel."""
    kind = {"architectures": ["MPNetModel"], "model_type": "mpnet"}
    fixed = {**_FIXED, "pad_token_id": config.pad_token_id}
    return {**kind, **dataclasses.asdict(config), **fixed}


def table(config: MPNetConfig) -> Table:
    """MPNet's weights, without a prefix."""
    layer = [
        *linear("attention.qkv", *(f"attention.attn.{n}" for n in "qkv")),
        *linear("attention.out", "attention.attn.o"),
        *norm("attention_norm", "attention.LayerNorm"),
        *linear("up", "intermediate.dense"),
        *linear("down", "output.dense"),
        *norm("mlp_norm", "output.LayerNorm"),
    ]
    return [
        Entry("word", ("embeddings.word_embeddings.weight",)),
        Entry("position", ("embeddings.position_embeddings.weight",)),
        *norm("norm", "embeddings.LayerNorm"),
        Entry("relative", ("encoder.relative_attention_bias.weight",)),
        *repeated(layer, config.num_hidden_layers, "layers", "encoder.layer"),
    ]


MPNET = Architecture(
    model_types={"mpnet": "MPNetTokenizer"},
    config=MPNetConfig,
    encoder=MPNet,
    read=read,
    write=write,
    table=table,
    layers=("encoder.layer",),
    positions=LearnedPositions(reserved=2, counts_padding=False),
    torch_twin=None,
    prefixes=("mpnet.",),
    dropped=r"(lm_head|pooler)\..*|embeddings\.position_ids",
    # Otherwise transformers adds a pooler and reports its weights as missing.
    model_args={"add_pooling_layer": False},
)
