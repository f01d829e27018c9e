"""Reads an encoder's `config.json`, and weights from safetensors as NumPy arrays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes  # also registers bfloat16 with NumPy, for safetensors
import numpy as np
from jaxtyping import Shaped

from cdejax.folders.keys import check_keys, key_names
from cdejax.folders.model_keys import ENCODER
from cdejax.folders.module_settings import arguments, settings_file
from cdejax.folders.reading import is_file, list_files, opened, read_json

_WEIGHTS = "model.safetensors"
FLOATS = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)
"""Supported dtypes of weights."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_config(folder: Path) -> dict[str, Any]:
    """Reads an encoder's `config.json`, with the `config_args` of its module added.

    Raises:
      ValueError: the file is missing or not a JSON object, a key is not supported, or
        the folder holds an adapter.
    """
    _refuse_adapters(folder)
    raw, given = read_json(folder / "config.json"), arguments(folder, "config")
    unsaid = [key for key in given if key not in raw and key not in key_names(ENCODER)]
    if unsaid:  # transformers accepts it if its class has such a setting
        raise ValueError(
            f"{settings_file(folder)}: config_args: {unsaid[0]} is "
            f"{given[unsaid[0]]!r:.60}, which config.json does not have; write it there"
        )
    check_keys(raw | given, ENCODER, str(folder / "config.json"))
    return raw | given


def _refuse_adapters(folder: Path) -> None:
    """Raises ValueError if a folder holds an adapter.

    transformers and sentence-transformers would apply it; we do not.
    """
    file = folder / "adapter_config.json"
    if is_file(file):
        raise ValueError(
            f"{file}: an adapter, which is not applied: merge the adapter first "
            "(PeftModel.merge_and_unload, then save_pretrained), and leave "
            "adapter_config.json out"
        )


def weights_file(folder: Path) -> Path:
    """Path of a folder's weights: `model.safetensors`, or the index of its shards."""
    whole, index = folder / _WEIGHTS, folder / f"{_WEIGHTS}.index.json"
    return index if is_file(index) and not is_file(whole) else whole


def read_tensors(
    folder: Path, *, content: bool = True
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Reads all tensors of `model.safetensors`, or of the shards that its index names.

    Args:
      folder: the folder with the weights.
      content: whether to read the values; otherwise the tensors have the right names,
        shapes and dtypes, but are zeros that take no memory.

    Raises:
      ValueError: a file is missing or damaged, index and shards do not agree, or there
        are only pickled weights.
    """
    file = weights_file(folder)
    if is_file(file):
        whole = file.name == _WEIGHTS
        return _load(file, content) if whole else _load_shards(file, content)
    pickled = [p.name for kind in _PICKLES for p in list_files(folder, kind)]
    if pickled:
        raise ValueError(
            f"{folder}: no {_WEIGHTS}, only {pickled[0]}, a pickle, which can run "
            "code when it is read. Convert it where you trust it: "
            "AutoModel.from_pretrained(…).save_pretrained(folder) writes safetensors"
        )
    raise ValueError(f"{folder}: no {_WEIGHTS} there; copy the weights")


def _load(path: Path, content: bool) -> dict[str, Shaped[np.ndarray, "..."]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(opened(path), framework="np") as file:
            read = file.get_tensor if content else partial(_zeros, file)
            return {name: read(name) for name in file.keys()}  # noqa: SIM118
    except (AttributeError, KeyError) as error:  # a dtype that NumPy does not have
        raise ValueError(
            f"{path}: a tensor is of a type that cdejax does not read ({error}); save "
            "the weights in float32, bfloat16 or float16"
        ) from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path}: damaged or cut short ({error}); copy or download it again"
        ) from None


def _zeros(file: Any, name: str) -> Shaped[np.ndarray, "..."]:
    """Zeros with a stored tensor's shape and dtype that share one memory location."""
    part = file.get_slice(name)
    shape = part.get_shape()
    few = part[:0] if shape else file.get_tensor(name)
    return np.broadcast_to(np.zeros((), few.dtype), shape)


def _load_shards(index: Path, content: bool) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Reads the shards of an index; each must hold exactly the tensors it lists."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in places.values()
    ):
        raise ValueError(f"{index}: no `weight_map` of tensors to files beside it")
    files = sorted(set(places.values()))
    if gone := [name for name in files if not is_file(index.parent / name)]:
        raise ValueError(f"{index}: files missing: {', '.join(gone)}; copy them too")
    tensors: dict[str, Shaped[np.ndarray, "..."]] = {}
    for name in files:
        shard = _load(index.parent / name, content)
        expected = {tensor for tensor, place in places.items() if place == name}
        if wrong := sorted(expected ^ shard.keys()):
            raise ValueError(
                f"{index}: {name} and the index differ in {', '.join(wrong)}; they "
                "are of different checkpoints"
            )
        tensors |= shard
    return tensors
