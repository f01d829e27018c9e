"""All architectures, by the `model_type` of config.json and by configuration class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture
from cdejax.models.checkpoints.bert import BERT
from cdejax.models.checkpoints.config import Raw
from cdejax.models.checkpoints.distilbert import DISTILBERT
from cdejax.models.checkpoints.modernbert import MODERNBERT
from cdejax.models.checkpoints.mpnet import MPNET
from cdejax.models.checkpoints.nomic_bert import NOMIC_BERT
from cdejax.models.checkpoints.qwen3 import QWEN3
from cdejax.models.checkpoints.roberta import ROBERTA
from cdejax.models.checkpoints.t5 import T5_ENCODER
from cdejax.models.checkpoints.table import Table
from cdejax.models.encoder import Encoder

ARCHITECTURES = (
    BERT,
    DISTILBERT,
    MODERNBERT,
    MPNET,
    NOMIC_BERT,
    QWEN3,
    ROBERTA,
    T5_ENCODER,
)
_BY_TYPE = {kind: found for found in ARCHITECTURES for kind in found.model_types}
_BY_CONFIG = {found.config: found for found in ARCHITECTURES}


def architecture(raw: Raw, source: str) -> Architecture:
    """The architecture that a `config.json` names.

    Raises:
      ValueError: `model_type` is missing or none of ours; all of ours are listed.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"{source}: {raw!r:.60} is no JSON object with a model_type")
    kind = raw.get("model_type")
    known = ", ".join(sorted(_BY_TYPE))
    if kind is None:
        raise ValueError(f"{source}: no model_type there; cdejax knows {known}")
    if not isinstance(kind, str) or kind not in _BY_TYPE:
        raise ValueError(f"{source}: model_type {kind!r} is none of ours: {known}")
    return _BY_TYPE[kind]


def architecture_of(config: Any) -> Architecture:
    """The architecture that a configuration of ours configures."""
    return _BY_CONFIG[type(config)]


def encoder_table(encoder: Encoder, *, published: bool = False) -> Table:
    """The weights' table of an encoder.

    Under transformers' own names, or under those of published checkpoints, where the
    architecture has others there.
    """
    found = architecture_of(encoder.config)
    names = found.published if published and found.published else found.table
    return names(encoder.config)
