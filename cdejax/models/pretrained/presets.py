"""Forward passes of the published CDE checkpoints, which their files do not specify.

cde-small-v1 was trained by code that does not rotate the context and adds the
token-type embedding to the text only (`v1-train`). Its published code rotates all
positions and adds the token-type embedding to all of them once more (`v1-hub`). Neither
has an output residual. cde-small-v2 (ModernBERT) places context at positions 0, 1, …,
normalises the text twice, does not pool the prefix, and has the residual. All use the
same layout of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from cdejax.models.encoders.modernbert import ModernBertConfig
from cdejax.models.encoders.nomic_bert import NomicBertConfig

PresetName = Literal["v1-train", "v1-hub", "v2"]


@dataclass(frozen=True)
class Preset:
    """Defaults for a checkpoint's config.json."""

    backbone: Any
    """Sizes of both stages' encoders."""
    switches: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json and their default values."""


_PUBLISHED = {
    "transductive_corpus_size": 512,
    "soft_tokens": 8,
    "pooling_strategy": "mean",
    "first_stage_residual": False,
    "transductive_sequence_dropout_prob": 0.0,
    "context_rotary": "none",
    "token_type_readd": False,
    "text_norm_twice": False,
    "output_residual": False,
}
_BERT_COLON, _MODERNBERT_COLON = 1024, 27
"""The first token of ": " in the tokenizers of v1 and v2."""
PRESETS: dict[str, Preset] = {
    "v1-train": Preset(
        NomicBertConfig(), _PUBLISHED | {"pool_instruction_end_id": _BERT_COLON}
    ),
    "v1-hub": Preset(
        NomicBertConfig(),
        _PUBLISHED
        | {"context_rotary": "sequence", "token_type_readd": True}
        | {"pool_instruction_end_id": _BERT_COLON},
    ),
    "v2": Preset(
        ModernBertConfig(),
        _PUBLISHED
        | {"context_rotary": "sequence", "text_norm_twice": True}
        | {"output_residual": True, "pool_ignore_instruction_tokens": True}
        | {"pool_instruction_end_id": _MODERNBERT_COLON},
    ),
}


def preset(name: str) -> Preset:
    """Returns the preset with a name; raises ValueError if it is unknown."""
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is not one of {get_args(PresetName)}")
    return PRESETS[name]
