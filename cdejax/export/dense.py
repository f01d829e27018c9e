"""A biencoder's head as stock Dense modules of sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from cdejax.models import BiEncoder
from cdejax.models.layers import Linear

_GELU = "torch.nn.modules.activation.GELU"
_NONE = "torch.nn.modules.linear.Identity"


@dataclass(frozen=True)
class DenseLayer:
    """One Dense module: its `config.json` and its tensors (PyTorch layout)."""

    config: dict[str, Any]
    tensors: dict[str, Float[np.ndarray, "..."]]


def head_layers(model: BiEncoder) -> list[DenseLayer]:
    """The head as Linear with GELU, then Linear; nothing for a model without one.

    A Dense module cannot add the head's input after two layers. But gelu(x) - gelu(-x)
    equals x: a residual becomes 2 · dim more hidden units that carry x past the GELU.
    """
    head = model.head
    if head is None:
        return []
    first, last = _weights(head.first), _weights(head.last)
    if head.residual:
        eye = np.eye(first[0].shape[1], dtype=np.float32)
        none = np.zeros(2 * len(eye), np.float32)
        wide = np.concatenate((first[0], eye, -eye))
        first = wide, np.concatenate((first[1], none))
        last = np.concatenate((last[0], eye, -eye), axis=1), last[1]
    return [_dense(*first, _GELU), _dense(*last, _NONE)]


def _weights(layer: Linear) -> tuple[np.ndarray, np.ndarray]:
    """Weight [out, in] and bias [out] of a linear layer."""
    assert layer.bias is not None
    return np.asarray(layer.kernel[...]).T, np.asarray(layer.bias[...])


def _dense(
    weight: Float[np.ndarray, "out in"],
    bias: Float[np.ndarray, " out"],
    activation: str,
) -> DenseLayer:
    config = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": True,
        "activation_function": activation,
    }
    return DenseLayer(config, {"linear.weight": weight, "linear.bias": bias})
