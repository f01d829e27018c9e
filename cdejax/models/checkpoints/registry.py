"""All architectures, by the `model_type` of config.json and by configuration class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture, LearnedPositions
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
"""All architectures. To add one, write its encoder and its entry, and list it here."""


def find_architecture(kind: object) -> Architecture | None:
    """The architecture of a `model_type`, or None if it is not supported."""
    return next((a for a in ARCHITECTURES if kind in list(a.model_types)), None)


def learned_positions(kind: object) -> LearnedPositions | None:
    """The learned positions of a `model_type`; None if it has none or is unknown."""
    found = find_architecture(kind)
    return None if found is None else found.positions


def architecture(raw: Raw, source: str) -> Architecture:
    """The architecture that a `config.json` names.

    Raises:
      ValueError: `model_type` is missing or not supported; the message lists those that
        are.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"{source}: {raw!r:.60} is no JSON object with a model_type")
    kind = raw.get("model_type")
    found = find_architecture(kind)
    if found is not None:
        return found
    known = ", ".join(sorted(kind for a in ARCHITECTURES for kind in a.model_types))
    if kind is None:
        raise ValueError(f"{source}: no model_type there; cdejax knows {known}")
    raise ValueError(f"{source}: model_type {kind!r} is none of ours: {known}")


def architecture_of(config: Any) -> Architecture:
    """The architecture of one of our configurations."""
    return next(a for a in ARCHITECTURES if a.config is type(config))


def encoder_table(encoder: Encoder, *, published: bool = False) -> Table:
    """The table of an encoder's weights.

    Args:
      encoder: the encoder.
      published: use the names of published checkpoints instead of transformers' own,
        if the architecture has both.
    """
    found = architecture_of(encoder.config)
    names = found.published if published and found.published else found.table
    return names(encoder.config)
