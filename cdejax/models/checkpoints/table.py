"""Tables that map parameters to checkpoint tensors, for loading and for saving.

A checkpoint is a dict of NumPy arrays with PyTorch's names and layout (linear weights
are [out, in]). Parameters are float32, with kernels [in, out] and one fused projection
for query, key and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

Tensor = Shaped[np.ndarray, "..."]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A parameter and the checkpoint tensors that it consists of."""

    path: str
    """Path of the parameter in the model: `layers.0.up.kernel`."""
    names: tuple[str, ...]
    """Tensors in the checkpoint, concatenated along their first axis."""
    transpose: bool = False
    """Whether the concatenated tensor is the transpose of the parameter."""
    shares: tuple[int, ...] = ()
    """Relative sizes of the tensors along the first axis (default: equal)."""

    def shapes(self, param: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Shape of each tensor, given the shape of the parameter."""
        first, *rest = reversed(param) if self.transpose else param
        shares = self.shares or (1,) * len(self.names)
        return [(first * share // sum(shares), *rest) for share in shares]

    def to_param(self, tensors: Tensors) -> Float[np.ndarray, "*shape"]:
        """Builds the parameter, in float32, from the checkpoint."""
        parts = [np.asarray(tensors[name], np.float32) for name in self.names]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.T if self.transpose else joined

    def to_tensors(self, param: Shaped[np.ndarray, "*shape"]) -> dict[str, Tensor]:
        """Builds the checkpoint's tensors from the parameter."""
        joined = param.T if self.transpose else param
        sizes = [shape[0] for shape in self.shapes(param.shape)]
        parts = np.split(joined, np.cumsum(sizes)[:-1])
        return {
            name: np.ascontiguousarray(part)
            for name, part in zip(self.names, parts, strict=True)
        }


Table = list[Entry]


def linear(
    path: str, *names: str, bias: bool = True, shares: tuple[int, ...] = ()
) -> Table:
    """A linear layer; several names are concatenated along the output features."""
    weight = tuple(f"{name}.weight" for name in names)
    entries = [Entry(f"{path}.kernel", weight, True, shares)]
    if bias:
        biases = tuple(f"{name}.bias" for name in names)
        entries.append(Entry(f"{path}.bias", biases, shares=shares))
    return entries


def norm(path: str, name: str, *, bias: bool = True) -> Table:
    """A layer norm, or an RMS norm (without bias)."""
    scale = Entry(f"{path}.scale", (f"{name}.weight",))
    return [scale, Entry(f"{path}.bias", (f"{name}.bias",))] if bias else [scale]


def head(path: str, name: str) -> Table:
    """Two linear layers with an activation between them, as a PyTorch Sequential."""
    return linear(f"{path}.first", f"{name}.0") + linear(f"{path}.last", f"{name}.2")


def inside(table: Table, path: str, name: str) -> Table:
    """Prefixes a table's parameter paths with `path` and tensor names with `name`."""
    return [
        Entry(path + e.path, tuple(name + n for n in e.names), e.transpose, e.shares)
        for e in table
    ]


def repeated(layer: Table, count: int, path: str, name: str) -> Table:
    """The table of `count` equal layers: `PATH.0.…` and `NAME.0.…`, and so on."""
    return [
        entry
        for i in range(count)
        for entry in inside(layer, f"{path}.{i}.", f"{name}.{i}.")
    ]
