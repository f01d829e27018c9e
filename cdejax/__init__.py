"""Contextual document embeddings in JAX.

- `load`: loads an embedder from an exported or Hugging Face folder.
- `Embedder`: encodes texts with a biencoder or contextual encoder.
- `Context`: context vectors of a contextual encoder.
- `from_pretrained`: loads a model (a Flax NNX module) from a Hugging Face folder.
- `train`: trains the models of a recipe.
- `models`: encoders, the biencoder and the contextual encoder.
- `embedding`: encoding of texts.
- `data`: pairs of queries and documents.
- `clustering`: surrogate vectors, clusters and the batch plan.
- `training`: contrastive training.
- `retrieval`: search and evaluation.
- `recipe`: stages, variants, runs and reports.
- `export`: Hugging Face folders and ONNX graphs.
- `config`: recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdejax.embedding.embedder import Embedder
    from cdejax.embedding.load import load
    from cdejax.models import from_pretrained
    from cdejax.models.context import Context
    from cdejax.recipe.train import train

    __version__: str

__all__ = ["Context", "Embedder", "__version__", "from_pretrained", "load", "train"]
_MODULES = {
    "Context": "cdejax.models.context",
    "Embedder": "cdejax.embedding.embedder",
    "from_pretrained": "cdejax.models",
    "load": "cdejax.embedding.load",
    "train": "cdejax.recipe.train",
}


def __getattr__(name: str) -> Any:
    """Imports public names on first use: `import cdejax` alone does not load JAX."""
    if name == "__version__":
        from importlib.metadata import version

        return version("cdejax")
    if name not in _MODULES:
        raise AttributeError(f"module 'cdejax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
