"""What a model card says, and that the hub's own parser reads it."""

import json
import subprocess

import pytest
import yaml

import cdejax.export.origin
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.export import export_model
from cdejax.export.baked import export_baked
from cdejax.export.card import is_hub_name, model_card
from cdejax.export.origin import code_origin
from cdejax.models.context import Context

from .conftest import MAX_LENGTH, PROMPTS, small_biencoder, small_contextual

TOLD = {
    "name": "lab/retriever",
    "base_model": "sentence-transformers/all-MiniLM-L6-v2",
    "data": [
        {"path": "hf:lab/pairs/en:train", "license": "cc-by-4.0"},
        {"path": "hf:lab/pairs/de", "license": None},
        {"path": "my/pairs.jsonl"},
        "12,000 pairs of code",
    ],
    "recipe": {"training": {"learning_rate": 0.25}},
    "evaluation": "cdejax evaluate --config recipe.yaml --variant a",
    "scores": {"scifact nDCG@10": "0.61 [0.58, 0.64]"},
    "license": "apache-2.0",
    "seed": 3,
}
SAID = (
    "# lab/retriever",
    "- Base model: sentence-transformers/all-MiniLM-L6-v2",
    "hf:lab/pairs/en:train (licence: cc-by-4.0)",
    "my/pairs.jsonl (licence: not stated)",
    "12,000 pairs of code (licence: not stated)",
    "| scifact nDCG@10 | 0.61 [0.58, 0.64] |",
    "cdejax evaluate --config recipe.yaml --variant a",
    "- seed: 3",
    "  learning_rate: 0.25",
    f"{MAX_LENGTH} tokens",
    "Language of the training data: not stated",
    *PROMPTS.values(),
)


def export(kind: str, minilm, folder, metadata):
    settings = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    if kind == "stock":
        model = small_biencoder("bert")
        return export_model(model, minilm, folder, **settings, metadata=metadata)
    model = small_contextual("bert")
    if kind == "contextual":
        return export_model(model, minilm, folder, **settings, metadata=metadata)
    embedder = Embedder(model, Tokenizer.load(minilm), **settings)
    context = embedder.context(["one", "two", "three"], seed=7)
    return export_baked(embedder, context, folder, metadata=metadata)


@pytest.mark.parametrize("kind", ["stock", "contextual", "baked"])
def test_every_export_writes_one(minilm, tmp_path, kind):
    from huggingface_hub import ModelCard

    folder = export(kind, minilm, tmp_path / "model", TOLD)
    card = ModelCard.load(folder / "README.md")
    for text in SAID:
        assert text in card.text
    data = card.data.to_dict()
    assert data["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert data["datasets"] == ["lab/pairs"]
    assert data["license"] == "apache-2.0"
    assert data["library_name"] == "sentence-transformers"
    assert data["pipeline_tag"] == "sentence-similarity"
    assert "language" not in data
    assert yaml.safe_load(card.content.split("---")[1]) == data
    assert ("trust_remote_code=True" in card.text) == (kind != "stock")
    assert ("dataset_embeddings" in card.text) == (kind == "contextual")
    marker = json.loads((folder / "cdejax.json").read_text())
    expected = {"stock": "BiEncoder", "contextual": "ContextualEncoder"}
    assert marker["kind"] == expected.get(kind, "BakedEncoder")
    assert marker["metadata"] == TOLD
    if kind == "baked":
        assert Context.load(folder).hash in card.text
        assert "- corpus: 3" in card.text
        assert "- seed: 7" in card.text


def test_says_what_is_not_known():
    settings = {"prompts": PROMPTS, "max_length": 9, "context_size": None}
    card = model_card("model", **settings, metadata={})
    for text in (
        "# model\n",
        "Base model: not stated",
        "Training data: not stated",
        "Licence of the model: not stated",
        "Not evaluated.",
        "cdejax evaluate --config RECIPE.yaml",
        code_origin(),
    ):
        assert text in card
    head = yaml.safe_load(card.split("---")[1])
    assert set(head) == {"library_name", "pipeline_tag", "tags"}
    known = model_card("model", **settings, metadata={"language": "de"})
    assert yaml.safe_load(known.split("---")[1])["language"] == "de"


def test_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("nomic-ai/nomic-bert-2048")
    for name in ("", "model", "runs/a/b", "package:m/f", "/root/x", "../x"):
        assert not is_hub_name(name)
    (tmp_path / "runs/mine").mkdir(parents=True)
    assert not is_hub_name("runs/mine")


def test_code_is_a_commit_in_our_checkout_alone(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True)

    package = tmp_path / "cdejax"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(cdejax.export.origin, "_PACKAGE", package)
    version = code_origin()
    assert version.startswith("cdejax ")
    git("init")
    (tmp_path / "other").write_text("a project with an environment inside")
    git("add", "other")
    git("commit", "-m", "other")
    assert code_origin() == version
    git("add", "cdejax")
    git("commit", "-m", "ours")
    commit = git("rev-parse", "HEAD").stdout.strip()
    assert code_origin() == f"{version}, commit {commit}"
    (package / "__init__.py").write_text("x = 1")
    assert code_origin() == f"{version}, commit {commit} with uncommitted changes"
    monkeypatch.setenv("PATH", "")
    assert code_origin() == version
