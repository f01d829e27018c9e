"""ModernBERT's config.json and tensor names, as in transformers' ModernBertModel."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture
from cdejax.models.checkpoints.config import (
    Raw,
    optional_value,
    read_fields,
    require_values,
    rotary_base,
)
from cdejax.models.checkpoints.table import Entry, Table, linear, norm, repeated
from cdejax.models.encoders.modernbert import ModernBert, ModernBertConfig

_FIXED = {"hidden_activation": "gelu", "rope_scaling": None}
_ROPE_FIXED = {"rope_type": "default", "partial_rotary_factor": 1.0}
_BASES = {
    "full_attention": "global_rope_theta",
    "sliding_attention": "local_rope_theta",
}


def read(raw: Raw, source: str) -> ModernBertConfig:
    """Reads ModernBERT's sizes, from the keys of transformers 4 or 5.

    Raises:
      ValueError: the variant is not supported, such as one in which the global layers
        are not every n-th layer.
    """
    require_values(raw, _FIXED, source)
    known = {**raw, **_bases(raw, source), **_rhythm(raw, source)}
    return read_fields(ModernBertConfig, known, source)


def _bases(raw: Raw, source: str) -> dict[str, Any]:
    """Rotary bases, from one object per layer type (transformers 5) or two keys."""
    rope = optional_value(raw, "rope_parameters", {}, source)
    if not set(rope) <= set(_BASES):
        raise ValueError(
            f"{source}: rope_parameters has keys {sorted(rope)}; a ModernBERT has one "
            f"entry each for {' and '.join(_BASES)}"
        )
    bases: dict[str, Any] = {}
    for kind, old in _BASES.items():
        parameters = optional_value(rope, kind, {}, f"{source}: rope_parameters")
        place, default = f"rope_parameters: {kind}", getattr(ModernBertConfig, old)
        require_values(parameters, _ROPE_FIXED, f"{source}: {place}")
        if bases and raw.get(old, default) is None:  # transformers 4: as the global one
            default = bases[_BASES["full_attention"]]
        bases[old] = rotary_base(raw, parameters, place, old, default, source)
    return bases


def _rhythm(raw: Raw, source: str) -> dict[str, int]:
    """The interval of global layers, from its own key or from `layer_types`."""
    key = "global_attn_every_n_layers"
    default = ModernBertConfig.global_attn_every_n_layers
    every = optional_value(raw, key, default, source)
    types = optional_value(raw, "layer_types", [], source)
    if types and len(types) != raw.get("num_hidden_layers", len(types)):
        raise ValueError(
            f"{source}: layer_types has {len(types)} entries, num_hidden_layers is "
            f"{raw['num_hidden_layers']!r}; it needs one for each layer"
        )
    for n in (every, *range(1, len(types) + 1)):
        if _layer_types(n, len(types)) == types:
            return {key: n}
    raise ValueError(
        f"{source}: layer_types is {types!r}; cdejax computes full_attention in layers "
        "0, n, 2n, … and sliding_attention in all others"
    )


def _layer_types(every: int, layers: int) -> list[str]:
    return [
        "sliding_attention" if index % every else "full_attention"
        for index in range(layers)
    ]


def write(config: ModernBertConfig) -> dict[str, Any]:
    """`config.json` for transformers' ModernBertModel."""
    values = dataclasses.asdict(config)
    every, layers = config.global_attn_every_n_layers, config.num_hidden_layers
    rope = {
        kind: {"rope_type": "default", "rope_theta": values.pop(old)}
        for kind, old in _BASES.items()
    }
    return {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        **values,
        "hidden_activation": "gelu",
        "layer_types": _layer_types(every, layers),
        "rope_parameters": rope,
    }


def table(config: ModernBertConfig) -> Table:
    """ModernBERT's weights, without a prefix."""
    norm_bias = config.norm_bias
    layer = [
        *norm("attention_norm", "attn_norm", bias=norm_bias),
        *linear("attention.qkv", "attn.Wqkv", bias=config.attention_bias),
        *linear("attention.out", "attn.Wo", bias=config.attention_bias),
        *norm("mlp_norm", "mlp_norm", bias=norm_bias),
        *linear("up", "mlp.Wi", bias=config.mlp_bias),
        *linear("down", "mlp.Wo", bias=config.mlp_bias),
    ]
    layers = repeated(layer, config.num_hidden_layers, "layers", "layers")
    return [
        Entry("word", ("embeddings.tok_embeddings.weight",)),
        *norm("norm", "embeddings.norm", bias=norm_bias),
        *(e for e in layers if not e.path.startswith("layers.0.attention_norm.")),
        *norm("final_norm", "final_norm", bias=norm_bias),
    ]


MODERNBERT = Architecture(
    model_types={"modernbert": "PreTrainedTokenizerFast"},
    config=ModernBertConfig,
    encoder=ModernBert,
    read=read,
    write=write,
    table=table,
    layers=("layers",),
    positions=None,
    torch_twin="ModernBertModel",
    prefixes=("model.",),
    dropped=r"(head|decoder|classifier)\..*|.*\binv_freq",
)
