"""Does an export give the same vectors, loaded where nothing else is?"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from cdejax.context import Context
from cdejax.embedder import Embedder

TOLERANCE = 1e-6
_TEXTS = (
    "contextual document embeddings",
    "def mean(values):\n    return sum(values) / len(values)",
    "A text of several words, with a number (42), punctuation; and more of it. " * 5,
    "",
    "ünïcödé – 文字",
)
_LOAD = """
import sys
import numpy as np
import jax.numpy as jnp
import cdejax
folder, texts, context, out, dtype = sys.argv[1:]
texts = np.load(texts).tolist()
embedder = cdejax.load(folder, dtype=jnp.dtype(dtype))
context = embedder.context(texts) if context == "yes" else None
np.save(out, embedder.encode(texts, "document", context))
"""


def check_export(embedder: Embedder, folder: str | Path) -> float:
    """Largest difference between a model's vectors and those of its export.

    The export is loaded by a fresh Python process; a contextual model gets a context
    of the same texts in both.

    Raises:
      ValueError: the difference is above 1e-6, or the process failed.
    """
    texts = list(_TEXTS)
    context: Context | None = None
    if embedder.context_size is not None:
        context = embedder.context(texts[: embedder.context_size])
    ours = embedder.encode(texts, "document", context)
    with tempfile.TemporaryDirectory() as temporary:
        given, out = Path(temporary) / "texts.npy", Path(temporary) / "out.npy"
        np.save(given, np.array(texts))
        arguments = [folder, given, "no" if context is None else "yes", out]
        command = [sys.executable, "-c", _LOAD, *map(str, arguments), embedder.dtype]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(
                f"{folder}: the export cannot be loaded in a fresh process: "
                f"{done.stderr.strip().splitlines()[-1]}"
            )
        theirs = np.load(out)
    difference = float(np.abs(ours - theirs).max())
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{folder}: vectors of the export differ by {difference:.1e} from the "
            f"model's, more than {TOLERANCE:.0e}"
        )
    return difference
