"""Runs the scripts of examples/, as users do or (sooner) in this process."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

import cdejax
from cdejax.export.folder import export_model
from cdejax.models import Bert, BertConfig, ContextualEncoder
from tests.tiny import write_encoder

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPTS = {"query": "search query: ", "document": "search document: "}


def run_script(name: str, *arguments: str | Path) -> str:
    """What a script prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_BY_ONE = """
import contextlib, io, json, runpy, sys
sys.path.insert(0, sys.argv[1])
printed = []
for sys.argv in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(sys.argv[0], run_name="__main__")
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def run_scripts(*commands: tuple[str | Path, ...]) -> list[str]:
    """What each of several prints, run one after another in one new process."""
    given = [[str(EXAMPLES / name), *map(str, rest)] for name, *rest in commands]
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, EXAMPLES, json.dumps(given)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def run_here(monkeypatch, capsys) -> Callable[..., str]:
    """The same in this process, where models are compiled already."""

    def run(name: str, *arguments: str | Path) -> str:
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="session")
def encoder(minilm, tmp_path_factory) -> Path:
    """Folder of a random one-layer BERT."""
    return write_encoder(tmp_path_factory.mktemp("tiny") / "encoder", minilm)


@pytest.fixture(scope="session")
def contextual(minilm, tmp_path_factory) -> Path:
    """Export of a tiny contextual model whose context matters."""
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    encoder = Bert(config, nnx.Rngs(0))
    model = ContextualEncoder.from_encoder(encoder, nnx.Rngs(1), context_size=8)
    rng = np.random.default_rng(0)  # new heads are zero: no context would matter
    changed = [
        (path, leaf.replace(leaf.get_value() + rng.normal(0, 0.3, leaf.shape)))
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))
    ]
    nnx.update(model, nnx.from_flat_state(changed))
    folder = tmp_path_factory.mktemp("contextual") / "export"
    return export_model(model, minilm, folder, prompts=PROMPTS, max_length=32)


@pytest.fixture(scope="session")
def other_context(contextual, tmp_path_factory) -> Path:
    """A context of the same model, from other texts."""
    folder = tmp_path_factory.mktemp("other") / "context"
    texts = [f"section {number} of the act on taxes" for number in range(8)]
    cdejax.load(contextual).context(texts).save(folder)
    return folder
