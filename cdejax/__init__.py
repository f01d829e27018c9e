"""Contextual document embeddings in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdejax.context import Context as Context
    from cdejax.embedder import Embedder as Embedder
    from cdejax.embedder import load as load

_LAZY = {"Context": "cdejax.context", "Embedder": "cdejax.embedder",
         "load": "cdejax.embedder"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports what is asked for: `import cdejax` alone loads no JAX."""
    if name not in _LAZY:
        raise AttributeError(f"module 'cdejax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
