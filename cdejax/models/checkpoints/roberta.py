"""RoBERTa's and XLM-RoBERTa's config.json and tensor names, as in transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture, LearnedPositions
from cdejax.models.checkpoints.bert import table
from cdejax.models.checkpoints.config import Raw, read_fields, require_values
from cdejax.models.encoders.roberta import Roberta, RobertaConfig

_CLASSES = {"roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel"}
_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
}
# transformers' defaults, which differ from the values of RoBERTa-base.
_UNSAID = {
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def read(raw: Raw, source: str) -> RobertaConfig:
    """Reads RoBERTa's sizes; raises ValueError for unsupported variants."""
    require_values(raw, _FIXED, source)
    return read_fields(RobertaConfig, {**_UNSAID, **raw}, source)


def write(config: RobertaConfig) -> dict[str, Any]:
    """`config.json` for RobertaModel or XLMRobertaModel, by `model_type`."""
    kind = {"architectures": [_CLASSES[config.model_type]]}
    return {**kind, **dataclasses.asdict(config), "hidden_act": "gelu"}


ROBERTA = Architecture(
    model_types={"roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer"},
    config=RobertaConfig,
    encoder=Roberta,
    read=read,
    write=write,
    table=table,
    layers=("encoder.layer",),
    positions=LearnedPositions(reserved=2, counts_padding=False),
    torch_twin=None,
    prefixes=("roberta.",),
    dropped=r"(lm_head|pooler)\..*|embeddings\.position_ids",
    # Otherwise transformers adds a pooler and reports its weights as missing.
    model_args={"add_pooling_layer": False},
)
