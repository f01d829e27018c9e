"""Qwen3's config.json and tensor names, as in transformers' Qwen3Model."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture
from cdejax.models.checkpoints.config import (
    SIZES,
    Raw,
    optional_value,
    read_fields,
    require_values,
    rotary_base,
)
from cdejax.models.checkpoints.table import Entry, Table, linear, norm, repeated
from cdejax.models.encoders.qwen3 import Qwen3, Qwen3Config

_FIXED = {"hidden_act": "silu", "use_sliding_window": False, "rope_scaling": None}
_ROPE_FIXED = {"rope_type": "default", "partial_rotary_factor": 1.0}
_NEEDED = (*SIZES, "num_key_value_heads", "head_dim")


def read(raw: Raw, source: str) -> Qwen3Config:
    """Reads Qwen3's sizes, from the keys of transformers 4 or 5.

    Raises:
      ValueError: the variant is not supported: sliding windows or scaled rotary
        positions.
    """
    rope = optional_value(raw, "rope_parameters", {}, source)
    types = optional_value(raw, "layer_types", [], source)
    require_values(raw, _FIXED, source)
    require_values(raw, {"layer_types": ["full_attention"] * len(types)}, source)
    require_values(rope, _ROPE_FIXED, f"{source}: rope_parameters")
    # transformers' default, which differs from published models
    default = 10_000.0
    theta = rotary_base(raw, rope, "rope_parameters", "rope_theta", default, source)
    known = {**raw, "rope_theta": theta}
    return read_fields(Qwen3Config, known, source, needed=_NEEDED)


def write(config: Qwen3Config) -> dict[str, Any]:
    """`config.json` for transformers' Qwen3Model, plus our key `is_causal`."""
    values = dataclasses.asdict(config)
    rope = {"rope_type": "default", "rope_theta": values.pop("rope_theta")}
    return {
        "architectures": ["Qwen3Model"],
        "model_type": "qwen3",
        **values,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "use_sliding_window": False,
    }


def table(config: Qwen3Config) -> Table:
    """Qwen3's weights, without a prefix."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    bias = config.attention_bias
    projections = (f"self_attn.{n}_proj" for n in "qkv")
    shares = (heads, groups, groups)
    layer = [
        *norm("attention_norm", "input_layernorm", bias=False),
        *linear("attention.qkv", *projections, bias=bias, shares=shares),
        *norm("attention.q_norm", "self_attn.q_norm", bias=False),
        *norm("attention.k_norm", "self_attn.k_norm", bias=False),
        *linear("attention.out", "self_attn.o_proj", bias=bias),
        *norm("mlp_norm", "post_attention_layernorm", bias=False),
        *linear("up", "mlp.up_proj", bias=False),
        *linear("gate", "mlp.gate_proj", bias=False),
        *linear("down", "mlp.down_proj", bias=False),
    ]
    return [
        Entry("word", ("embed_tokens.weight",)),
        *repeated(layer, config.num_hidden_layers, "layers", "layers"),
        *norm("norm", "norm", bias=False),
    ]


QWEN3 = Architecture(
    model_types={"qwen3": "Qwen2Tokenizer"},
    config=Qwen3Config,
    encoder=Qwen3,
    read=read,
    write=write,
    table=table,
    layers=("layers",),
    positions=None,
    torch_twin=None,
    prefixes=("model.",),
    dropped=r"(lm_head|score)\..*|.*\binv_freq",
)
