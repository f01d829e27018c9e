"""Hashes of what decides a model's vectors: parameters and settings."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from cdejax.models import Model, config_dict


def parameter_hash(params: Any) -> str:
    """Hash (16 hex digits) of a pytree of parameters, as float32."""
    digest = hashlib.blake2b(digest_size=8)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
    return digest.hexdigest()


def forward_settings(model: Model) -> list[Any]:
    """What a model computes with its parameters, as JSON values."""
    return [config_dict(model), *model.forward_settings()]
