"""Files of a model folder: JSON, and weights from safetensors through NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy the bfloat16 that safetensors asks for)
import numpy as np


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; ValueError if it is missing or is none."""
    if not path.is_file():
        raise ValueError(f"{path.parent}: no {path.name} there; is it a model folder?")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object was expected, not {type(value)}")
    return value


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder's `model.safetensors`.

    Raises:
      ValueError: the file is missing or damaged, or there are only pickled weights.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / "model.safetensors"
    if not path.is_file():
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        if pickled:
            raise ValueError(
                f"{folder}: no model.safetensors, only {pickled[0]}, a pickle, which "
                "can run code when it is read. Convert it where you trust it: "
                "AutoModel.from_pretrained(…).save_pretrained(folder) writes "
                "safetensors"
            )
        raise ValueError(f"{folder}: no model.safetensors there; copy the weights")
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: damaged or cut short ({error}); copy or download it again"
        ) from None
