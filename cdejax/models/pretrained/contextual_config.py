"""Configurations: from Hugging Face's `config.json` to ours and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cdejax.models.checkpoints.config import Raw, check_value, require_values
from cdejax.models.checkpoints.registry import architecture, architecture_of
from cdejax.models.pretrained.presets import PRESETS, preset
from cdejax.models.second_stage import ContextualConfig, SecondStage

_CONTEXTUAL_FIXED = {
    "autoregressive_backbone": False,
    "embedding_output_dim": None,
    "pool_ignore_contextual_tokens": True,
    "transductive_tie_token_embeddings": False,
    "transductive_tokens_per_document": 1,
}
"""Keys of published checkpoints for which only one value is supported."""
_CONTEXTUAL_KEYS = {
    "context_size": "transductive_corpus_size",
    "soft_tokens": "soft_tokens",
    "pooling": "pooling_strategy",
    "first_stage_residual": "first_stage_residual",
    "output_residual": "output_residual",
    "sequence_dropout": "transductive_sequence_dropout_prob",
    "context_rotary": "context_rotary",
    "token_type_readd": "token_type_readd",
}
_ROTARY = ("none", "sequence")


def encoder_config(raw: Raw, source: str) -> Any:
    """The configuration of the encoder that a `config.json` describes.

    Args:
      raw: the contents of the file.
      source: the file, for messages.

    Raises:
      ValueError: the architecture or variant is not supported, a size is missing, or
        `check_value` refuses a value.
    """
    return architecture(raw, source).read(raw, source)


def with_preset(raw: Raw, name: str | None, source: str) -> dict[str, Any]:
    """Completes a contextual `config.json` with the missing keys from a preset.

    Args:
      raw: the contents of the file; its own values take precedence.
      name: the preset, or None.
      source: the file, for messages.

    Raises:
      ValueError: the preset is unknown or is of another architecture; or there is
        neither a preset nor `backbone_config`, which published checkpoints lack.
    """
    if name is not None:
        found = preset(name)
        said = {key: value for key, value in raw.items() if value is not None}
        backbone = encoder_config_dict(found.backbone)
        stated = raw.get("backbone_config")
        kind = stated.get("model_type") if isinstance(stated, Mapping) else None
        if kind not in (None, backbone["model_type"]):
            raise ValueError(
                f"{source}: preset {name!r} is a forward pass of "
                f"{backbone['model_type']}, but backbone_config has {kind!r}; "
                "give the preset of this checkpoint, or none"
            )
        return {**raw, "backbone_config": backbone, **found.switches, **said}
    if isinstance(raw.get("backbone_config"), Mapping):
        return dict(raw)
    raise ValueError(
        f"{source}: a contextual model without `backbone_config`. Published CDE "
        "checkpoints lack it and differ in their forward pass: say which it has, by "
        f"preset={' or '.join(map(repr, PRESETS))}"
    )


def contextual_config(raw: Raw, null_embedding: bool, source: str) -> ContextualConfig:
    """The settings of a contextual model.

    Args:
      raw: the contents of its `config.json`, complete (see `with_preset`).
      null_embedding: whether the model has a null vector.
      source: the file, for messages.

    Raises:
      ValueError: a key is missing, `check_value` refuses a value, or the variant is not
        supported.
    """
    require_values(raw, _CONTEXTUAL_FIXED, source)
    fields = {f.name: f for f in dataclasses.fields(ContextualConfig)}
    missing = [key for key in _CONTEXTUAL_KEYS.values() if key not in raw]
    if missing:
        raise ValueError(
            f"{source}: keys missing: {', '.join(missing)} (a published CDE checkpoint "
            f"is loaded with preset={' or '.join(map(repr, PRESETS))})"
        )
    values = {
        name: check_value(raw[key], fields[name].default, key, source)
        for name, key in _CONTEXTUAL_KEYS.items()
    }
    if values["context_rotary"] not in _ROTARY:
        raise ValueError(
            f"{source}: context_rotary is {values['context_rotary']!r}, not one of "
            f"{_ROTARY}"
        )
    twice = check_value(
        raw.get("text_norm_twice", False), False, "text_norm_twice", source
    )
    return ContextualConfig(
        **values,
        text_norm_twice=twice,
        pool_instruction_end_id=_instruction_end(raw, source),
        null_embedding=null_embedding,
    )


def _instruction_end(raw: Raw, source: str) -> int | None:
    """Id of the token that ends a prefix, or None if prefixes are pooled."""
    key = "pool_ignore_instruction_tokens"
    if not check_value(raw.get(key) or False, False, key, source):
        return None
    end = raw.get("pool_instruction_end_id")
    if end is None:
        raise ValueError(
            f"{source}: pool_ignore_instruction_tokens needs pool_instruction_end_id, "
            "the id of the token that ends a prefix"
        )
    return check_value(end, 0, "pool_instruction_end_id", source)


def stage_configs(raw: Raw, source: str) -> tuple[Any, Any]:
    """Configurations of the encoders of both stages of a contextual model.

    Raises:
      ValueError: as for `encoder_config`, or a limit of layers is not from 1 to the
        number of layers.
    """
    config = encoder_config(raw["backbone_config"], f"{source}: backbone_config")
    most = config.num_hidden_layers

    def limited(key: str) -> Any:
        layers = raw.get(key)
        layers = most if layers is None else layers
        whole = isinstance(layers, int) and not isinstance(layers, bool)
        if not whole or not 1 <= layers <= most:
            raise ValueError(f"{source}: {key} is {layers!r}; the encoder has {most}")
        return dataclasses.replace(config, num_hidden_layers=layers)

    return limited("limit_layers_first_stage"), limited("limit_layers")


def encoder_config_dict(config: Any) -> dict[str, Any]:
    """The `config.json` of an encoder, as transformers' native classes read it."""
    return {**architecture_of(config).write(config), "dtype": "float32"}


def contextual_config_dict(model: SecondStage) -> dict[str, Any]:
    """The `config.json` of a contextual encoder: CDE's keys, the backbone and ours.

    Raises:
      ValueError: the stages' encoders differ in more than their number of layers.
    """
    configs = [encoder.config for encoder in model.encoders.values()]
    first, second = configs[0], configs[-1]
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

    end = model.config.pool_instruction_end_id

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
        "text_norm_twice": model.config.text_norm_twice,
        "pool_ignore_instruction_tokens": end is not None,
        "pool_instruction_end_id": end,
        "null_embedding": model.config.null_embedding,
        "disable_transductive_rotary_embedding": values["context_rotary"] == "none",
        "backbone_config": encoder_config_dict(backbone),
        "dtype": "float32",
    }
