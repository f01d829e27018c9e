"""Exports load with a clean cache, no network, and nobody to answer a question."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.export import export_model
from cdejax.export.baked import export_baked
from tests.models.oracles import run

from .conftest import MAX_LENGTH, PROMPTS, cosines, small_contextual

# In every process of the script; processes of one machine may talk to each other.
SCRIPT = """\
import os, socket, sys
import numpy as np

real = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX:
        print("asked the network:", address, file=sys.stderr)
        os._exit(3)
    return real(self, address)
socket.socket.connect = connect

from sentence_transformers import SentenceTransformer
from transformers import AutoModel

def load(folder):
    return SentenceTransformer(folder, trust_remote_code=True, device="cpu")

if __name__ == "__main__":
    contextual, baked = sys.argv[1:]
    texts = np.load("texts.npy").tolist()
    model = load(contextual)
    context = model.encode(["one", "two"], prompt_name="document")
    three = model.encode_query(["three"], dataset_embeddings=context)
    AutoModel.from_pretrained(contextual, trust_remote_code=True)
    model = load(baked)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    pooled = model.encode_query(texts, pool=pool, chunk_size=8)
    model.stop_multi_process_pool(pool)
    single = model.encode_query(texts)
    np.savez("out.npz", three=three, single=single, pooled=pooled)
    assert not {"jax", "cdejax"} & set(sys.modules)
"""


class Offline(NamedTuple):
    """A contextual model, and what a process made of its two exports."""

    embedder: Embedder
    expected: np.ndarray
    """Vectors of the texts as queries, with the context."""
    done: subprocess.CompletedProcess
    place: Path
    """Folder with out.npz."""


@pytest.fixture(scope="module")
def offline(minilm, texts, tmp_path_factory) -> Offline:
    """Both exports in a process without cache, network and standard input.

    One process, for importing the libraries takes longer than all it does.
    """
    place = tmp_path_factory.mktemp("offline")
    texts = texts[:30]
    given = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    model = small_contextual("nomic_bert")
    whole = export_model(model, minilm, place / "model", **given)
    embedder = Embedder(model, Tokenizer.load(minilm), context_length=9, **given)
    context = embedder.context(texts)
    baked = export_baked(embedder, context, place / "baked")
    expected = embedder.encode(texts, "query", context, 1)
    np.save(place / "texts.npy", np.array(texts))
    (place / "script.py").write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    home = str(place / "home")
    command = [sys.executable, "script.py", str(whole), str(baked)]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        env=environment | {"HF_HOME": home, "HOME": home},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return Offline(embedder, expected, done, place)


def vectors(offline: Offline) -> dict[str, np.ndarray]:
    assert offline.done.returncode == 0, offline.done.stderr
    assert "y/N" not in offline.done.stdout + offline.done.stderr
    return np.load(offline.place / "out.npz")


def same(ours, theirs, tolerance):
    assert cosines(ours, theirs).min() >= 0.99999
    np.testing.assert_allclose(theirs, ours, atol=tolerance, rtol=0)


def test_offline_with_standard_input_closed(offline, tokens):
    """A contextual export in sentence-transformers and transformers."""
    found, model = vectors(offline), offline.embedder.model
    folder = offline.place / "model"
    context = run(
        model,
        *tokens(folder, ["one", "two"], PROMPTS["document"]),
        method="first_stage",
    )
    ids, mask = tokens(folder, ["three"], PROMPTS["query"])
    ours = run(model, ids, mask, context, method="second_stage")
    same(ours, found["three"], 1e-5)


def test_offline_in_several_processes_with_standard_input_closed(offline):
    """A baked export, alone and in sentence-transformers' pool of processes."""
    found = vectors(offline)
    same(offline.expected, found["single"], 2e-5)
    same(found["single"], found["pooled"], 2e-5)
