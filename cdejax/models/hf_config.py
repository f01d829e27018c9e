"""Configurations: Hugging Face's `config.json` to ours and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cdejax.models.baked import BakedEncoder
from cdejax.models.checkpoints.config import Raw, require, typed
from cdejax.models.checkpoints.registry import architecture, architecture_of
from cdejax.models.contextual import ContextualConfig, ContextualEncoder

_CONTEXTUAL_FIXED = {
    "autoregressive_backbone": False,
    "context_rotary": "none",
    "disable_transductive_rotary_embedding": True,
    "embedding_output_dim": None,
    "null_embedding": True,
    "pool_ignore_contextual_tokens": True,
    "pool_ignore_instruction_tokens": False,
    "token_type_readd": False,
    "transductive_tie_token_embeddings": False,
    "transductive_tokens_per_document": 1,
}
_CONTEXTUAL_KEYS = {
    "context_size": "transductive_corpus_size",
    "soft_tokens": "soft_tokens",
    "pooling": "pooling_strategy",
    "first_stage_residual": "first_stage_residual",
    "output_residual": "output_residual",
    "sequence_dropout": "transductive_sequence_dropout_prob",
}


def encoder_config(raw: Raw, source: str) -> Any:
    """The encoder that a `config.json` describes, as one of our configurations.

    Args:
      raw: its content.
      source: its name, for messages.

    Raises:
      ValueError: another architecture, a variant that we do not compute, a size that is
        missing, or a value of the wrong type.
    """
    return architecture(raw, source).read(raw, source)


def contextual_config(raw: Raw, source: str) -> ContextualConfig:
    """The switches of a contextual export.

    Raises:
      ValueError: not one of ours (no `backbone_config`), or other forward semantics.
    """
    if not isinstance(raw.get("backbone_config"), Mapping):
        raise ValueError(
            f"{source}: a contextual model without `backbone_config`. Published CDE "
            "checkpoints lack it and differ in their forward pass; load an export of "
            "cdejax"
        )
    require(raw, _CONTEXTUAL_FIXED, source)
    fields = {f.name: f for f in dataclasses.fields(ContextualConfig)}
    missing = [key for key in _CONTEXTUAL_KEYS.values() if key not in raw]
    if missing:
        raise ValueError(f"{source}: keys missing: {', '.join(missing)}")
    values = {
        name: typed(raw[key], fields[name].default, key, source)
        for name, key in _CONTEXTUAL_KEYS.items()
    }
    return ContextualConfig(**values)


def stage_configs(raw: Raw, source: str) -> tuple[Any, Any]:
    """Encoders of the first and second stage of a contextual export."""
    config = encoder_config(raw["backbone_config"], f"{source}: backbone_config")
    most = config.num_hidden_layers

    def limited(key: str) -> Any:
        layers = raw.get(key)
        layers = most if layers is None else layers
        return dataclasses.replace(config, num_hidden_layers=layers)

    return limited("limit_layers_first_stage"), limited("limit_layers")


def encoder_config_dict(config: Any) -> dict[str, Any]:
    """`config.json` of an encoder, as transformers' native classes read it."""
    return {**architecture_of(config).write(config), "dtype": "float32"}


def contextual_config_dict(model: ContextualEncoder) -> dict[str, Any]:
    """`config.json` of a contextual encoder: CDE's keys, the backbone, our switches."""
    second = model.backbone.config
    baked = isinstance(model, BakedEncoder)
    first = second if baked else model.first.encoder.config
    most = max(first.num_hidden_layers, second.num_hidden_layers)
    backbone = dataclasses.replace(second, num_hidden_layers=most)
    if dataclasses.replace(first, num_hidden_layers=most) != backbone:
        raise ValueError(
            "the stages' encoders differ in more than layers, which the published "
            f"layout cannot say: {first} and {second}"
        )
    values = {
        key: getattr(model.config, name) for name, key in _CONTEXTUAL_KEYS.items()
    }

    def limit(layers: int) -> int | None:
        return None if layers == most else layers

    return {
        "architecture": "transductive",
        "hidden_size": model.dim,
        "biencoder_pooling_strategy": model.config.pooling,
        "disable_dropout": True,
        "limit_layers": limit(second.num_hidden_layers),
        "limit_layers_first_stage": limit(first.num_hidden_layers),
        **_CONTEXTUAL_FIXED,
        **values,
        "backbone_config": encoder_config_dict(backbone),
        "dtype": "float32",
    }
