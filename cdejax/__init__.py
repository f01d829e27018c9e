"""Contextual document embeddings in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdejax.embedding.embedder import Embedder as Embedder
    from cdejax.embedding.load import load as load
    from cdejax.models.context import Context as Context

_LAZY = {"Context": "cdejax.models.context", "Embedder": "cdejax.embedding.embedder",
         "load": "cdejax.embedding.load"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports what is asked for: `import cdejax` alone loads no JAX."""
    if name not in _LAZY:
        raise AttributeError(f"module 'cdejax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
