"""Does an export give the same vectors, loaded where nothing else is?"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cdejax.context import Context
from cdejax.embedder import Embedder
from cdejax.mesh import local_mesh
from cdejax.platforms import has_cpu
from cdejax.similarity import unit

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
_OURS = """
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
_THEIRS = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
folder, texts, context, out, _ = sys.argv[1:]
texts = np.load(texts).tolist()
own = {"trust_remote_code": True, "device": "cpu", "local_files_only": True}
model = SentenceTransformer(folder, **own, model_kwargs={"dtype": "float32"})
given = {"prompt_name": "document", "show_progress_bar": False}
if context == "yes":
    given["dataset_embeddings"] = model.encode(texts, **given)
np.save(out, model.encode(texts, **given))
"""


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
    fresh = _vectors(_OURS, folder, texts, context is not None, embedder.dtype)
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

    Both are loaded on the CPU in float32, in processes of their own. Where
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
    given = folder, list(_TEXTS[:context_size]), context_size is not None, "float32"
    if ours is None:
        ours = _vectors(_OURS, *given, JAX_PLATFORMS="cpu")
    theirs = _vectors(_THEIRS, *given, JAX_PLATFORMS="cpu")
    difference = float(np.abs(unit(ours) - unit(theirs)).max())
    if not difference <= OTHERS_TOLERANCE:
        raise ValueError(
            f"{folder}: vectors of the export differ by {difference:.1e} between "
            f"cdejax and sentence-transformers, more than {OTHERS_TOLERANCE:.0e}; the "
            "export is not kept"
        )
    _log.info("%s: sentence-transformers differs by %.1e", folder, difference)


def _vectors(
    script: str,
    folder: str | Path,
    texts: list[str],
    contextual: bool,
    dtype: str,
    **environment: str,
) -> Float[np.ndarray, "texts dim"]:
    """What a script saves in a fresh process.

    Raises:
      ValueError: the process failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        given, out = Path(temporary) / "texts.npy", Path(temporary) / "out.npy"
        np.save(given, np.array(texts))
        context = "yes" if contextual else "no"
        command = [sys.executable, "-c", script, folder, given, context, out, dtype]
        # transformers copies the code of a folder there
        place = {"HF_MODULES_CACHE": str(Path(temporary) / "modules")}
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            env=os.environ | place | {"HF_HUB_OFFLINE": "1"} | environment,
        )
        if done.returncode:
            last = (done.stderr.strip() or "it ended without a message").splitlines()
            reader = "sentence-transformers" if script == _THEIRS else "cdejax"
            raise ValueError(
                f"{folder}: the export cannot be loaded by {reader} in a fresh "
                f"process: {last[-1]}"
            )
        return np.load(out)
