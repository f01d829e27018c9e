"""Loads an embedder from an exported or Hugging Face folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jaxtyping import DTypeLike

from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.folders.marker import warn_of_changes
from cdejax.folders.paths import resolve_folder
from cdejax.models import from_pretrained
from cdejax.models.context import Context
from cdejax.models.pretrained.presets import PresetName
from cdejax.models.pretrained.settings import read_settings, transformer_folder
from cdejax.runtime.mesh import local_mesh
from cdejax.runtime.platforms import default_dtype


def load(
    folder: str | Path,
    *,
    dtype: DTypeLike | None = None,
    preset: PresetName | None = None,
    tokenizer: str | Path | None = None,
) -> Embedder:
    """Loads an embedder from an exported or Hugging Face folder.

    A warning names the files of an export that have changed since it was written.

    Args:
      folder: a folder, `package:MODULE/FOLDER` of an installed package, or
        `hf:OWNER/NAME`, which is downloaded from the Hugging Face Hub.
      dtype: dtype of the activations (default: bfloat16 on GPU and TPU, float32 on
        CPU).
      preset: forward pass of a published CDE checkpoint (see `from_pretrained`).
      tokenizer: folder with the tokenizer, if the model's folder has none, as those of
        published CDE checkpoints.

    Raises:
      ValueError: the folder, its weights, its tokenizer or its settings are missing or
        do not fit.
    """
    path = resolve_folder(folder)
    warn_of_changes(path)
    settings = read_settings(path)
    chosen = default_dtype(local_mesh()) if dtype is None else _activations(dtype)
    model = from_pretrained(path, dtype=chosen, preset=preset)
    place = transformer_folder(path) if tokenizer is None else resolve_folder(tokenizer)
    baked = Context.load(path) if model.kind == "baked" else None
    return Embedder(
        model, Tokenizer.load(place), name=str(folder), baked=baked, **settings
    )


def _activations(dtype: DTypeLike) -> Any:
    """Checks a dtype of activations; ValueError if the models do not support it."""
    with contextlib.suppress(TypeError):
        if (found := jnp.dtype(dtype)) in (jnp.float32, jnp.bfloat16, jnp.float16):
            return found
    raise ValueError(f"dtype {dtype!r}: give float32, bfloat16 or float16")
