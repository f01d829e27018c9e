"""Files of a model folder: JSON, and weights from safetensors through NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # it also gives NumPy the bfloat16 that safetensors asks for
import numpy as np
from jaxtyping import Shaped

_WEIGHTS = "model.safetensors"
FLOATS = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)
"""Types of weights that are read."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; ValueError if it is missing or is none."""
    if not path.is_file():
        raise ValueError(f"{path.parent}: no {path.name} there; is it a model folder?")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object was expected, not {value!r:.60}")
    return value


def weights_file(folder: Path) -> Path:
    """Where a folder's weights stand, or are to stand: in one file, or its index."""
    whole, index = folder / _WEIGHTS, folder / f"{_WEIGHTS}.index.json"
    return index if index.is_file() and not whole.is_file() else whole


def read_tensors(folder: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """All tensors of `model.safetensors`, or of the files that its index names.

    Raises:
      ValueError: a file is missing or damaged, index and files do not agree, or there
        are only pickled weights.
    """
    file = weights_file(folder)
    if file.is_file():
        return _load(file) if file.name == _WEIGHTS else _load_shards(file)
    pickled = sorted(p.name for kind in _PICKLES for p in folder.glob(kind))
    if pickled:
        raise ValueError(
            f"{folder}: no {_WEIGHTS}, only {pickled[0]}, a pickle, which can run "
            "code when it is read. Convert it where you trust it: "
            "AutoModel.from_pretrained(…).save_pretrained(folder) writes safetensors"
        )
    raise ValueError(f"{folder}: no {_WEIGHTS} there; copy the weights")


def _load(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (AttributeError, KeyError) as error:  # of types that NumPy does not have
        raise ValueError(
            f"{path}: a tensor is of a type that cdejax does not read ({error}); save "
            "the weights in float32, bfloat16 or float16"
        ) from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path}: damaged or cut short ({error}); copy or download it again"
        ) from None


def _load_shards(index: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Joins the files of an index, which must hold what it says and nothing twice."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in places.values()
    ):
        raise ValueError(f"{index}: no `weight_map` of tensors to files beside it")
    files = sorted(set(places.values()))
    if gone := [name for name in files if not (index.parent / name).is_file()]:
        raise ValueError(f"{index}: files missing: {', '.join(gone)}; copy them too")
    tensors: dict[str, Shaped[np.ndarray, "..."]] = {}
    for name in files:
        shard = _load(index.parent / name)
        expected = {tensor for tensor, place in places.items() if place == name}
        if wrong := sorted(expected ^ shard.keys()):
            raise ValueError(
                f"{index}: {name} and the index differ in {', '.join(wrong)}; they "
                "are of different checkpoints"
            )
        tensors |= shard
    return tensors
