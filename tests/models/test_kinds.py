"""What callers ask of a model, whichever it is."""

import ast
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

import cdejax
from cdejax.embedding.hashes import forward_settings
from cdejax.models import BakedEncoder, BiEncoder, EmbeddingModel
from cdejax.storage.artifacts import fingerprint
from tests.export.conftest import CONTEXT, small_biencoder, small_contextual

ROOT = Path(cdejax.__file__).parent
KINDS = ["biencoder", "contextual", "baked"]
CLASSES = {
    *("EmbeddingModel", "BiEncoder", "ContextualEncoder", "BakedEncoder"),
    *("SecondStage", "Model", "TrainableModel"),
}


@pytest.fixture(scope="module")
def models() -> dict[str, EmbeddingModel]:
    contextual = small_contextual("bert")
    context = np.ones((3, contextual.dim), np.float32)
    return {
        "biencoder": small_biencoder("bert", head="mlp"),
        "contextual": contextual,
        "baked": BakedEncoder(contextual, context),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_says_what_it_is(models, kind):
    model = models[kind]
    assert model.kind == kind
    assert model.context_size == (CONTEXT if kind == "contextual" else 0)
    assert model.soft_tokens == (0 if kind == "biencoder" else 8)
    assert model.pools_prompts
    fingerprint(forward_settings(model))


@pytest.mark.parametrize("kind", KINDS)
def test_encoders_go_by_the_path_of_their_parameters(models, kind):
    model = models[kind]
    paths = {
        ".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model))
    }
    for path, encoder in model.encoders.items():
        inner = {
            f"{path}.{'.'.join(map(str, p))}"
            for p, _ in nnx.to_flat_state(nnx.state(encoder))
        }
        assert inner <= paths
    assert model.text_encoder is list(model.encoders.values())[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_covers_every_parameter(models, kind):
    model = models[kind]
    paths = {
        ".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model))
    }
    assert {entry.path for entry in model.table()} == paths


@pytest.mark.parametrize("kind", KINDS)
def test_all_embed_by_one_call(models, kind):
    model = models[kind]
    ids, lengths = np.ones((2, 5), np.int32), np.array([5, 2], np.int32)
    vectors = np.ones((3, model.dim), np.float32)
    found = model.embed(ids, lengths, context=(vectors, None))
    assert found.shape == (2, model.dim)
    if kind == "biencoder":
        np.testing.assert_array_equal(found, model(ids, lengths=lengths))
    if kind == "baked":
        same = models["contextual"].embed(ids, lengths, context=(vectors, None))
        np.testing.assert_allclose(found, same, atol=1e-6)


def test_a_biencoder_may_leave_prompts_out_of_the_pool():
    model = small_biencoder("bert", include_prompt=False)
    assert isinstance(model, BiEncoder)
    assert not model.pools_prompts


def asks_for_a_class(node: ast.AST) -> bool:
    """Whether a node is `isinstance` or `issubclass` with a class of models."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if node.func.id not in ("isinstance", "issubclass"):
        return False
    names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
    return bool(names & CLASSES)


def test_nothing_outside_models_asks_for_a_class_of_models():
    asking = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        if ROOT / "models" not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and asks_for_a_class(node)
    ]
    assert asking == []
