"""A biencoder's head as stock modules of sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

from cdejax.models import BiEncoder
from cdejax.models.layers import Head, Linear
from cdejax.models.modules import Chain, Dense, LayerNorm, Module


@dataclass(frozen=True)
class Layer:
    """One module: its class, its `config.json` and its tensors (PyTorch layout)."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Float[np.ndarray, "..."]]


def head_layers(model: BiEncoder) -> list[Layer]:
    """What follows a model's pooling, as modules; nothing for a model without head."""
    if isinstance(model.head, Chain):
        return [_layer(module) for module in model.head.modules]
    return [] if model.head is None else _mlp(model.head)


def _layer(module: Module) -> Layer:
    config: dict[str, Any] = {}
    if isinstance(module, Dense):
        config = _dense_config(module.features, module.out, module.activation)
        config["bias"] = module.linear.bias is not None
        if module.residual:  # versions before 5.7 know no such key
            config["use_residual"] = True
    elif isinstance(module, LayerNorm):
        config = {"dimension": module.out}
    params = {
        ".".join(map(str, path)): np.asarray(param[...])
        for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param))
    }
    tensors: dict[str, np.ndarray] = {}
    for entry in module.table():
        tensors |= entry.to_tensors(params[entry.path])
    return Layer(type(module).__name__, config, tensors)


def _mlp(head: Head) -> list[Layer]:
    """Linear with GELU, then Linear.

    A Dense module cannot add the head's input after two layers. But gelu(x) - gelu(-x)
    equals x: a residual becomes 2 · dim more hidden units that carry x past the GELU.
    """
    first, last = _weights(head.first), _weights(head.last)
    if head.residual:
        eye = np.eye(first[0].shape[1], dtype=np.float32)
        none = np.zeros(2 * len(eye), np.float32)
        wide = np.concatenate((first[0], eye, -eye))
        first = wide, np.concatenate((first[1], none))
        last = np.concatenate((last[0], eye, -eye), axis=1), last[1]
    return [_dense(*first, "GELU"), _dense(*last, "Identity")]


def _weights(layer: Linear) -> tuple[np.ndarray, np.ndarray]:
    """Weight [out, in] and bias [out] of a linear layer."""
    assert layer.bias is not None
    return np.asarray(layer.kernel[...]).T, np.asarray(layer.bias[...])


def _dense(
    weight: Float[np.ndarray, "out in"],
    bias: Float[np.ndarray, " out"],
    activation: str,
) -> Layer:
    out, features = weight.shape
    config = _dense_config(features, out, activation)
    return Layer("Dense", config, {"linear.weight": weight, "linear.bias": bias})


def _dense_config(features: int, out: int, activation: str) -> dict[str, Any]:
    place = "linear" if activation == "Identity" else "activation"
    return {
        "in_features": features,
        "out_features": out,
        "bias": True,
        "activation_function": f"torch.nn.modules.{place}.{activation}",
    }
