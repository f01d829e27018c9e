"""Configurations: Hugging Face's `config.json` to ours and back.

A NomicBERT comes with transformers' keys (hidden_size, …) or Nomic's own (n_embd, …);
which of them says nothing about the names of its weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cdejax.models.bert import Bert, BertConfig
from cdejax.models.contextual import ContextualConfig, ContextualEncoder
from cdejax.models.encoder import Encoder
from cdejax.models.nomic_bert import NomicBert, NomicBertConfig

EncoderConfig = BertConfig | NomicBertConfig
Raw = Mapping[str, Any]

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_HUB_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "type_vocab_size": "type_vocab_size",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
    "pad_token_id": "pad_token_id",
    "rotary_base": "rotary_emb_base",
}
# What else a configuration may say, and the only values that we compute.
_BERT_FIXED = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
}
_NOMIC_FIXED = {"hidden_act": "silu"}
_HUB_FIXED = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "use_rms_norm": False,
}
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


def encoder_config(raw: Raw, source: str) -> EncoderConfig:
    """The encoder that a `config.json` describes.

    Args:
      raw: its content.
      source: its name, for messages.

    Raises:
      ValueError: another architecture, a variant that we do not compute, a size that is
        missing, or a value of the wrong type.
    """
    kind = raw.get("model_type")
    if kind == "bert":
        _require(raw, _BERT_FIXED, source)
        return _fill(BertConfig, raw, {}, source)
    if kind != "nomic_bert":
        raise ValueError(
            f"{source}: model_type {kind!r} is none of ours: 'bert' or 'nomic_bert'"
        )
    if "hidden_size" in raw or "n_embd" not in raw:
        return _native_nomic(raw, source)
    _require(raw, _HUB_FIXED, source)
    inner = raw.get("n_inner") or int(8 * raw["n_embd"] / 3)
    known = {**raw, "intermediate_size": inner}
    config = _fill(NomicBertConfig, known, _HUB_KEYS, source)
    multiple = raw.get("pad_vocab_size_multiple") or 1
    rows = -(-config.vocab_size // multiple) * multiple
    return dataclasses.replace(config, vocab_size=rows)


def _native_nomic(raw: Raw, source: str) -> NomicBertConfig:
    rope = raw.get("rope_parameters") or {}
    _require(raw, _NOMIC_FIXED, source)
    _require(rope, {"rope_type": "default", "partial_rotary_factor": 1.0}, source)
    theta = rope.get("rope_theta", raw.get("rope_theta", 1000.0))
    known = {**raw, "rotary_base": theta}
    config = _fill(NomicBertConfig, known, {}, source)
    _require(
        raw, {"head_dim": config.hidden_size // config.num_attention_heads}, source
    )
    return config


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
    _require(raw, _CONTEXTUAL_FIXED, source)
    fields = {f.name: f for f in dataclasses.fields(ContextualConfig)}
    missing = [key for key in _CONTEXTUAL_KEYS.values() if key not in raw]
    if missing:
        raise ValueError(f"{source}: keys missing: {', '.join(missing)}")
    values = {
        name: _typed(raw[key], fields[name].default, key, source)
        for name, key in _CONTEXTUAL_KEYS.items()
    }
    return ContextualConfig(**values)


def stage_configs(raw: Raw, source: str) -> tuple[EncoderConfig, EncoderConfig]:
    """Encoders of the first and second stage of a contextual export."""
    config = encoder_config(raw["backbone_config"], f"{source}: backbone_config")
    most = config.num_hidden_layers

    def limited(key: str) -> EncoderConfig:
        layers = raw.get(key)
        layers = most if layers is None else layers
        return dataclasses.replace(config, num_hidden_layers=layers)

    return limited("limit_layers_first_stage"), limited("limit_layers")


def encoder_config_dict(config: EncoderConfig) -> dict[str, Any]:
    """`config.json` of an encoder, as transformers' native classes read it."""
    values = dataclasses.asdict(config)
    if isinstance(config, BertConfig):
        kind = {"architectures": ["BertModel"], "model_type": "bert"}
        return {**kind, **values, "hidden_act": "gelu", "dtype": "float32"}
    base = values.pop("rotary_base")
    kind = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert"}
    rope = {"rope_type": "default", "rope_theta": base}
    return {
        **kind,
        **values,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "dtype": "float32",
    }


def contextual_config_dict(model: ContextualEncoder) -> dict[str, Any]:
    """`config.json` of a contextual encoder: CDE's keys, the backbone, our switches."""
    first, second = model.first.encoder.config, model.backbone.config
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


def encoder_class(config: EncoderConfig) -> type[Encoder]:
    """The encoder that a configuration configures."""
    return Bert if isinstance(config, BertConfig) else NomicBert


def _fill(kind: type, raw: Raw, keys: Mapping[str, str], source: str) -> Any:
    names = {f.name: keys.get(f.name, f.name) for f in dataclasses.fields(kind)}
    missing = [names[size] for size in _SIZES if raw.get(names[size]) is None]
    if missing:
        raise ValueError(f"{source}: keys missing: {', '.join(missing)}")
    values = {
        field.name: _typed(raw[names[field.name]], field.default, field.name, source)
        for field in dataclasses.fields(kind)
        if raw.get(names[field.name]) is not None
    }
    return kind(**values)


def _typed(value: Any, example: Any, key: str, source: str) -> Any:
    """`value` if it is of the example's type (an int may stand for a float)."""
    wanted = (int, float) if isinstance(example, float) else type(example)
    fits = isinstance(value, wanted) and isinstance(value, bool) == isinstance(
        example, bool
    )
    if not fits:
        raise ValueError(
            f"{source}: {key} is {value!r}, not a {type(example).__name__}"
        )
    return type(example)(value)


def _require(raw: Raw, fixed: Raw, source: str) -> None:
    faults = [
        f"{key}: {raw[key]!r} (we compute {value!r})"
        for key, value in fixed.items()
        if key in raw and raw[key] != value and raw[key] is not None
    ]
    if faults:
        raise ValueError(
            f"{source}: a variant that cdejax does not compute: {'; '.join(faults)}"
        )
