"""Hashes of what decides a model's vectors: parameters and settings."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from cdejax.models import BiEncoder, ContextualEncoder
from cdejax.models.modules import Chain
from cdejax.models.pretrained.load import config_dict


def parameter_hash(params: Any) -> str:
    """Hash (16 hex digits) of a pytree of parameters, as float32."""
    digest = hashlib.blake2b(digest_size=8)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
    return digest.hexdigest()


def forward_settings(model: BiEncoder | ContextualEncoder) -> list[Any]:
    """What a model computes with its parameters, as JSON values."""
    if isinstance(model, ContextualEncoder):
        return [config_dict(model)]
    head = model.head.modules if isinstance(model.head, Chain) else [model.head]
    modules = [
        [type(m).__name__, getattr(m, "activation", ""), getattr(m, "residual", False)]
        for m in head
    ]
    return [config_dict(model), model.pooling, model.include_prompt, modules]
