"""NomicBERT's config.json and tensor names, each in transformers' or Nomic's form.

A checkpoint may have its configuration in one form and its tensor names in the other.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture
from cdejax.models.checkpoints.config import (
    Raw,
    check_value,
    optional_value,
    read_fields,
    require_values,
    rotary_base,
)
from cdejax.models.checkpoints.table import (
    Entry,
    Table,
    Tensors,
    linear,
    norm,
    repeated,
)
from cdejax.models.encoders.nomic_bert import NomicBert, NomicBertConfig

_HUB_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rotary_base": "rotary_emb_base",
}
_NATIVE_FIXED = {"hidden_act": "silu"}
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


def read(raw: Raw, source: str) -> NomicBertConfig:
    """Reads NomicBERT's sizes; raises ValueError for unsupported variants."""
    if "hidden_size" in raw or "n_embd" not in raw:
        return _native(raw, source)
    require_values(raw, _HUB_FIXED, source)
    default = 8 * check_value(raw["n_embd"], 1, "n_embd", source) // 3
    known = {**raw, "n_inner": optional_value(raw, "n_inner", default, source)}
    config = read_fields(NomicBertConfig, known, source, _HUB_KEYS)
    multiple = optional_value(raw, "pad_vocab_size_multiple", 1, source)
    rows = -(-config.vocab_size // multiple) * multiple
    return dataclasses.replace(config, vocab_size=rows)


def _native(raw: Raw, source: str) -> NomicBertConfig:
    rope = optional_value(raw, "rope_parameters", {}, source)
    require_values(raw, _NATIVE_FIXED, source)
    require_values(rope, {"rope_type": "default", "partial_rotary_factor": 1.0}, source)
    default = NomicBertConfig.rotary_base
    theta = rotary_base(raw, rope, "rope_parameters", "rope_theta", default, source)
    config = read_fields(NomicBertConfig, {**raw, "rotary_base": theta}, source)
    head_dim = config.hidden_size // config.num_attention_heads
    require_values(raw, {"head_dim": head_dim}, source)
    return config


def write(config: NomicBertConfig) -> dict[str, Any]:
    """`config.json` for transformers' NomicBertModel."""
    values = dataclasses.asdict(config)
    base = values.pop("rotary_base")
    return {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        **values,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
    }


def table(config: NomicBertConfig) -> Table:
    """Weights under transformers' names."""
    layer = [
        *linear("attention.qkv", *(f"self_attn.{n}_proj" for n in "qkv"), bias=False),
        *linear("attention.out", "self_attn.o_proj", bias=False),
        *norm("attention_norm", "post_attention_layernorm"),
        *linear("up", "mlp.up_proj", bias=False),
        *linear("gate", "mlp.gate_proj", bias=False),
        *linear("down", "mlp.down_proj", bias=False),
        *norm("mlp_norm", "post_mlp_layernorm"),
    ]
    layers = repeated(layer, config.num_hidden_layers, "layers", "layers")
    return [*_embeddings("embeddings.LayerNorm"), *layers]


def published(config: NomicBertConfig) -> Table:
    """Weights under the names of Nomic's own code."""
    layer = [
        *linear("attention.qkv", "attn.Wqkv", bias=False),
        *linear("attention.out", "attn.out_proj", bias=False),
        *norm("attention_norm", "norm1"),
        *linear("up", "mlp.fc11", bias=False),
        *linear("gate", "mlp.fc12", bias=False),
        *linear("down", "mlp.fc2", bias=False),
        *norm("mlp_norm", "norm2"),
    ]
    layers = repeated(layer, config.num_hidden_layers, "layers", "encoder.layers")
    return [*_embeddings("emb_ln"), *layers]


def _embeddings(norm_name: str) -> Table:
    return [
        Entry("word", ("embeddings.word_embeddings.weight",)),
        Entry("token_type", ("embeddings.token_type_embeddings.weight",)),
        *norm("norm", norm_name),
    ]


def _is_published(tensors: Tensors) -> bool:
    pattern = re.compile(r"attn\.Wqkv|emb_ln|mlp\.fc\d")
    return any(pattern.search(name) for name in tensors)


def _fitted(config: NomicBertConfig, tensors: Tensors) -> NomicBertConfig:
    """Corrects the MLP size, which Nomic's code rounds up to a multiple of 256."""
    rounded = -(-config.intermediate_size // 256) * 256
    names = ("encoder.layers.0.mlp.fc11.weight", "layers.0.mlp.up_proj.weight")
    if any(n in tensors and tensors[n].shape[0] == rounded for n in names):
        return dataclasses.replace(config, intermediate_size=rounded)
    return config


NOMIC_BERT = Architecture(
    model_types={"nomic_bert": "BertTokenizer"},
    config=NomicBertConfig,
    encoder=NomicBert,
    read=read,
    write=write,
    table=table,
    layers=("layers", "encoder.layers"),
    positions=None,
    torch_twin="NomicBertModel",
    published=published,
    is_published=_is_published,
    prefixes=("bert.", "nomic_bert."),
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    dropped=r"(cls|pooler)\..*|embeddings\.position_ids|.*\binv_freq",
    fitted=_fitted,
)
