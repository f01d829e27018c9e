"""T5's config.json and tensor names, as in transformers' T5EncoderModel."""

from __future__ import annotations

import dataclasses
from typing import Any

from cdejax.models.checkpoints.architecture import Architecture
from cdejax.models.checkpoints.config import Raw, read_fields
from cdejax.models.checkpoints.table import Entry, Table, linear, norm, repeated
from cdejax.models.encoders.t5 import T5, T5Config

_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "head_dim": "d_kv",
}
_MLPS = ("relu", "gated-gelu")


def read(raw: Raw, source: str) -> T5Config:
    """Reads the sizes of the encoder of T5, or of mT5, which differs in sizes only.

    Raises:
      ValueError: the MLP is neither T5 1.0's nor T5 1.1's, or the number of position
        buckets or their maximum distance is not supported.
    """
    default = {"feed_forward_proj": "gated-gelu"} if _is_mt5(raw) else {}
    config = read_fields(T5Config, {**default, **raw}, source, _KEYS)
    if config.feed_forward_proj not in _MLPS:
        raise ValueError(
            f"{source}: feed_forward_proj is {config.feed_forward_proj!r}; cdejax "
            f"computes {' and '.join(_MLPS)}"
        )
    count, farthest = (
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
    )
    if count < 4 or count % 4 or farthest <= count // 4:
        raise ValueError(
            f"{source}: relative_attention_num_buckets is {count} and "
            f"relative_attention_max_distance {farthest}; cdejax needs a multiple of 4 "
            "and more than a quarter of it"
        )
    return config


def _is_mt5(raw: Raw) -> bool:
    return raw.get("model_type") == "mt5"


def write(config: T5Config) -> dict[str, Any]:
    """`config.json` for transformers' T5EncoderModel."""
    values = {
        _KEYS.get(name, name): value
        for name, value in dataclasses.asdict(config).items()
    }
    return {"architectures": ["T5EncoderModel"], "model_type": "t5", **values}


def table(config: T5Config) -> Table:
    """The encoder's weights; its first layer has the relative position biases."""
    attention, mlp = "layer.0.SelfAttention", "layer.1.DenseReluDense"
    if config.feed_forward_proj == "relu":
        inner = linear("up", f"{mlp}.wi", bias=False)
    else:
        parts = {"up": f"{mlp}.wi_0", "gate": f"{mlp}.wi_1"}
        inner = [e for p, n in parts.items() for e in linear(p, n, bias=False)]
    layer = [
        *norm("attention_norm", "layer.0.layer_norm", bias=False),
        *linear("attention.qkv", *(f"{attention}.{n}" for n in "qkv"), bias=False),
        *linear("attention.out", f"{attention}.o", bias=False),
        *norm("mlp_norm", "layer.1.layer_norm", bias=False),
        *inner,
        *linear("down", f"{mlp}.wo", bias=False),
    ]
    biases = f"encoder.block.0.{attention}.relative_attention_bias.weight"
    return [
        Entry("word", ("shared.weight",)),
        Entry("relative", (biases,)),
        *repeated(layer, config.num_hidden_layers, "layers", "encoder.block"),
        *norm("norm", "encoder.final_layer_norm", bias=False),
    ]


T5_ENCODER = Architecture(
    model_types={"t5": "T5Tokenizer", "mt5": "T5Tokenizer"},
    config=T5Config,
    encoder=T5,
    read=read,
    write=write,
    table=table,
    layers=("encoder.block",),
    positions=None,
    torch_twin=None,
    # The two are tied: a checkpoint may have either name or both.
    renamed={"encoder.embed_tokens.weight": "shared.weight"},
    dropped=r"(decoder|lm_head)\..*",
)
