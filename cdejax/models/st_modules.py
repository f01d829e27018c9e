"""What sentence-transformers' files say: the encoder's folder, its pooling and head."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cdejax.models.folders import read_json, read_tensors
from cdejax.models.pooling import Pooling

_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS = ("GELU", "Identity")


@dataclass(frozen=True)
class Modules:
    """A folder's modules, as far as a biencoder of ours can follow them."""

    encoder: Path
    """Folder with the encoder's `config.json` and weights."""
    pooling: Pooling = "mean"
    """How token states become one vector."""
    head: dict[str, np.ndarray] = field(default_factory=dict)
    """Weights of an MLP head, under our checkpoint names."""
    head_sizes: tuple[int, int] | None = None
    """Its hidden and output size."""


def read_modules(folder: Path) -> Modules:
    """Reads `modules.json` and what it names; without it, mean pooling.

    Understood are Transformer, Pooling (mean, cls, last token), two Dense layers with
    a GELU between them (the MLP head), and Normalize, which changes no cosine.

    Raises:
      ValueError: any other module or setting, by name.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return Modules(folder)
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(m["type"].rsplit(".", 1)[-1], folder / m["path"]) for m in listed]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: not a list of modules ({error!r})") from None
    if pairs:
        read_json(pairs[0][1] / "config.json")  # without it, say that first
    kinds = [kind for kind, _ in pairs if kind != "Normalize"]
    if kinds not in (
        ["Transformer", "Pooling"],
        ["Transformer", "Pooling", "Dense", "Dense"],
    ):
        raise ValueError(
            f"{path}: modules {kinds}, but cdejax reads Transformer and Pooling, with "
            "two Dense (an MLP head) or none, and Normalize"
        )
    where = [at for kind, at in pairs if kind != "Normalize"]
    head, sizes = _head(where[2:]) if len(where) > 2 else ({}, None)
    return Modules(where[0], _pooling(where[1] / "config.json"), head, sizes)


def _pooling(path: Path) -> Pooling:
    raw = read_json(path)
    modes: Any = raw.get("pooling_mode", [v for k, v in _LEGACY.items() if raw.get(k)])
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ValueError(f"{path}: pooling {modes} is not one of {list(_POOLINGS)}")
    if raw.get("include_prompt", True) is not True:
        raise ValueError(
            f"{path}: include_prompt {raw['include_prompt']!r}: prompts are always "
            "pooled here"
        )
    return _POOLINGS[modes[0]]


def _head(folders: list[Path]) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
    tensors: dict[str, np.ndarray] = {}
    sizes = []
    for folder, index, wanted in zip(folders, (0, 2), _ACTIVATIONS, strict=True):
        path = folder / "config.json"
        raw = read_json(path)
        activation = str(raw.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
        plain = raw.get("bias", True) and not raw.get("use_residual", False)
        if activation != wanted or not plain:
            raise ValueError(
                f"{path}: activation {activation}, bias {raw.get('bias', True)}, "
                f"use_residual {raw.get('use_residual', False)}; this layer of an MLP "
                f"head has {wanted}, a bias and no residual"
            )
        sizes.append(int(raw["out_features"]))
        for name, tensor in read_tensors(folder).items():
            tensors[name.replace("linear.", f"mlp.{index}.")] = tensor
    return tensors, (sizes[0], sizes[1])
