"""Does an export give the same vectors in other processes, in both libraries?"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cdejax.embedding.embedder import Embedder
from cdejax.export.readers import cdejax_vectors, sentence_transformers_vectors
from cdejax.models.context import Context
from cdejax.models.similarity import unit
from cdejax.runtime.mesh import local_mesh
from cdejax.runtime.platforms import has_cpu

TOLERANCE = 1e-6
"""Between a model and its export, both computed here."""
OTHERS_TOLERANCE = 1e-4
"""Between cdejax and sentence-transformers, in float32, for vectors of length 1."""
_log = logging.getLogger(__name__)
_TEXTS: tuple[str, ...] = (
    "contextual document embeddings",
    "def mean(values):\n    return sum(values) / len(values)",
    "A text of several words, with a number (42), punctuation; and more of it. " * 5,
    "",
    "ünïcödé – 文字",
)


def check_export(embedder: Embedder, folder: str | Path) -> None:
    """Compares a model's vectors with those of its export in a fresh process.

    A contextual model gets a context of the same texts in both. Then the export is
    compared with sentence-transformers: see `check_sentence_transformers`.

    Raises:
      ValueError: the difference is above 1e-6, or the process failed.
    """
    texts = list(_TEXTS[: embedder.context_size])
    context: Context | None = None
    if embedder.context_size is not None:
        context = embedder.context(texts)
    ours = embedder.encode(texts, "document", context)
    fresh = cdejax_vectors(folder, texts, context is not None, embedder.dtype)
    difference = float(np.abs(ours - fresh).max())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{folder}: vectors of the export differ by {difference:.1e} from the "
            f"model's, more than {TOLERANCE:.0e}"
        )
    _log.info("%s: vectors in a fresh process differ by %.1e", folder, difference)
    alike = has_cpu(local_mesh()) and embedder.dtype == "float32"
    check_sentence_transformers(folder, embedder.context_size, fresh if alike else None)


def check_sentence_transformers(
    folder: str | Path,
    context_size: int | None,
    ours: Float[np.ndarray, "texts dim"] | None = None,
) -> None:
    """Compares an export's vectors in sentence-transformers with those in cdejax.

    Both are loaded on the CPU in float32, in other processes than this. Where
    sentence-transformers is not installed, the log says so.

    Args:
      folder: the export.
      context_size: context texts at most; None for a model that takes no context.
      ours: cdejax's vectors, where they have been computed.

    Raises:
      ValueError: the difference, at length 1, is above 1e-4, or a process failed.
    """
    if importlib.util.find_spec("sentence_transformers") is None:
        _log.info(
            "%s: not compared with sentence-transformers, which is not installed",
            folder,
        )
        return
    given = folder, list(_TEXTS[:context_size]), context_size is not None
    if ours is None:
        ours = cdejax_vectors(*given, "float32", JAX_PLATFORMS="cpu")
    theirs = sentence_transformers_vectors(*given)
    difference = float(np.abs(unit(ours) - unit(theirs)).max())
    if not difference <= OTHERS_TOLERANCE:
        raise ValueError(
            f"{folder}: vectors of the export differ by {difference:.1e} between "
            f"cdejax and sentence-transformers, more than {OTHERS_TOLERANCE:.0e}; the "
            "export is not kept"
        )
    _log.info("%s: sentence-transformers differs by %.1e", folder, difference)
