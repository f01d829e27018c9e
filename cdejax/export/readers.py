"""An export's vectors as its users get them: in other processes than this one.

Importing sentence-transformers takes several seconds, so its process stays for further
exports. It forgets the code of one folder before it reads the next, and ends by itself
when it has not been asked for a while, or when this process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

IDLE_SECONDS = 60
"""Time after which the process of sentence-transformers ends if it is not used."""
_CDEJAX = """
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
_SENTENCE_TRANSFORMERS = """
import json, os, select, sys
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print is no answer
sys.dont_write_bytecode = True  # a later folder may hold other code of the same name
import numpy as np
from sentence_transformers import SentenceTransformer
own = {"trust_remote_code": True, "device": "cpu", "local_files_only": True}
own["model_kwargs"] = {"dtype": "float32"}
given = {"prompt_name": "document", "show_progress_bar": False}

def write(folder, texts, context, out):
    model = SentenceTransformer(folder, **own)
    more = {"dataset_embeddings": model.encode(texts, **given)} if context else {}
    np.save(out, model.encode(texts, **given, **more))

while select.select([0], [], [], float(sys.argv[1]))[0]:
    request = sys.stdin.readline()
    if not request:
        break
    try:
        write(**json.loads(request))
    except Exception as error:
        answers.write(json.dumps(f"{type(error).__name__}: {error}") + "\\n")
    else:
        answers.write('""\\n')
    for name in [name for name in sys.modules if name.startswith("transformers_mod")]:
        del sys.modules[name]
"""


def cdejax_vectors(
    folder: str | Path,
    texts: list[str],
    contextual: bool,
    dtype: str,
    **environment: str,
) -> Float[np.ndarray, "texts dim"]:
    """The documents' vectors by `cdejax.load` in a process of their own.

    Args:
      folder: the export.
      texts: the documents.
      contextual: make a context of the same texts first.
      dtype: of the activations.
      environment: variables that differ from this process's.

    Raises:
      ValueError: the process failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        given, out = Path(temporary) / "texts.npy", Path(temporary) / "out.npy"
        np.save(given, np.array(texts))
        context = "yes" if contextual else "no"
        command = [sys.executable, "-c", _CDEJAX, folder, given, context, out, dtype]
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
        )
        if done.returncode:
            raise _unreadable(folder, "cdejax", done.stderr)
        return np.load(out)


def sentence_transformers_vectors(
    folder: str | Path, texts: list[str], contextual: bool
) -> Float[np.ndarray, "texts dim"]:
    """The documents' vectors by sentence-transformers, on the CPU in float32.

    Args:
      folder: the export.
      texts: the documents.
      contextual: make a context of the same texts first.

    Raises:
      ValueError: the folder cannot be loaded or used there, or the process failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        out, place = Path(temporary) / "out.npy", Path(folder).absolute()
        request = {"folder": str(place), "texts": texts, "context": contextual}
        _sentence_transformers().ask({**request, "out": str(out)})
        return np.load(out)


class _SentenceTransformers:
    """The process of sentence-transformers, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._place = tempfile.TemporaryDirectory()
        self._log = Path(self._place.name) / "log"
        atexit.register(self.close)

    def ask(self, request: dict[str, Any]) -> None:
        """Has vectors written; ValueError if that fails."""
        with self._lock:
            answer = self._answer(request)
            if not answer and self._exit_code() == 0:  # it had just ended, unused
                answer = self._answer(request)
        said = json.loads(answer) if answer else self._log.read_text()
        if said or not answer:
            raise _unreadable(request["folder"], "sentence-transformers", said)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()  # closes its pipes

    def _answer(self, request: dict[str, Any]) -> str:
        """A line of JSON: an error, or an empty string. Nothing from a dead process."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return process.stdout.readline()

    def _exit_code(self) -> int:
        assert self._process is not None
        return self._process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            # transformers copies the code of a folder to a place of its own.
            place = {"HF_MODULES_CACHE": str(Path(self._place.name) / "modules")}
            place |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _SENTENCE_TRANSFORMERS, str(IDLE_SECONDS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=os.environ | place,
                )
        return self._process


@functools.cache
def _sentence_transformers() -> _SentenceTransformers:
    return _SentenceTransformers()


def _unreadable(folder: str | Path, reader: str, said: str) -> ValueError:
    last = (said.strip() or "it ended without a message").splitlines()[-1]
    return ValueError(
        f"{folder}: the export cannot be loaded by {reader} in another process: {last}"
    )
