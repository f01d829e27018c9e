"""`cdejax context` and `cdejax bake`, and what `encode` and `search` make of them."""

import json

import numpy as np
import pytest

import cdejax
from cdejax.cli.main import main
from cdejax.export import export_model
from cdejax.models.context import Context
from tests.export.conftest import MAX_LENGTH, PROMPTS, small_contextual

TEXTS = [f"{kind} number {i}" for i in range(20) for kind in ("boat", "fox")]


def run(*arguments):
    main([str(a) for a in arguments])


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def model(minilm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "export"
    settings = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    return export_model(small_contextual("bert"), minilm, folder, **settings)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def test_a_context_is_chosen_saved_baked_and_used(model, corpus, tmp_path, capsys):
    saved, baked = tmp_path / "context", tmp_path / "baked"
    choice = ["--size", 5, "--seed", 2, "--method", "kmeans++", "--candidates", 30]
    choice += ["--fill", "resample"]
    run("context", "--model", model, "--texts", corpus, "--output", saved, *choice)
    assert capsys.readouterr().out.strip() == str(saved)
    settings = {"method": "kmeans++", "candidates": 30, "fill": "resample"}
    expected = cdejax.load(model).context(TEXTS, size=5, seed=2, **settings)
    assert Context.load(saved).info == expected.info
    run("bake", "--model", model, "--context", saved, "--output", baked)
    assert capsys.readouterr().out.strip() == str(baked)
    config = json.loads((baked / "config.json").read_text())
    assert config["baked_context"]["hash"] == expected.hash
    given = ["--texts", corpus, "--kind", "query"]
    run("encode", "--model", model, *given, "--context", saved, "--output",
        tmp_path / "one.npy")  # fmt: skip
    run("encode", "--model", baked, *given, "--output", tmp_path / "two.npy")
    one, two = (np.load(tmp_path / f"{name}.npy") for name in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=2e-5)
    capsys.readouterr()
    asked = ["--documents", corpus, "--query", "a fox", "--k", 3]
    tables = []
    for folder, more in ((model, ["--context", saved]), (baked, [])):
        run("search", "--model", folder, *asked, *more)
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    refused = ["encode", "--model", baked, *given, "--output", tmp_path / "3.npy"]
    message = fails(capsys, *refused, "--context", saved)
    assert f"{expected.hash} baked in and takes no other" in message
    assert "baked in and takes no other" in fails(capsys, *refused, "--context", corpus)


def test_nothing_is_overwritten_unasked(model, corpus, tmp_path, capsys):
    saved = tmp_path / "context"
    given = ["context", "--model", model, "--texts", corpus, "--output", saved]
    run(*given)
    assert "add --overwrite" in fails(capsys, *given, "--seed", 1)
    assert Context.load(saved).seed == 0
    run(*given, "--seed", 1, "--overwrite")
    assert Context.load(saved).seed == 1
    given[-1] = corpus
    assert "is a file; name a folder" in fails(capsys, *given)
    given[-1] = corpus / "inside"
    assert "cannot be written" in fails(capsys, *given)


def test_bad_requests(model, minilm, corpus, tmp_path, capsys):
    given = ["--texts", corpus, "--output", tmp_path / "c"]
    assert "is a biencoder" in fails(capsys, "context", "--model", minilm, *given)
    made = ["context", "--model", model, *given]
    assert "size 13: this model reads 0 to 12" in fails(capsys, *made, "--size", 13)
    assert "looks at no text" in fails(capsys, *made, "--candidates", 20)
    assert "no context there" in fails(
        capsys, "bake", "--model", model, "--context", tmp_path, "--output", "b"
    )
    cdejax.load(model).context(TEXTS).save(tmp_path / "mine")
    bake = ["bake", "--context", tmp_path / "mine", "--output", tmp_path / "b"]
    assert "is a biencoder" in fails(capsys, *bake, "--model", minilm)
    assert not (tmp_path / "b").exists()
    inside = ["bake", "--model", model, "--context", tmp_path / "mine"]
    message = fails(capsys, *inside, "--output", model / "inner")
    assert "is inside the folder of the model that it is made from" in message
    before = sorted(path.name for path in model.iterdir())
    made = ["context", "--model", model, "--texts", corpus, "--overwrite"]
    assert "holds a model" in fails(capsys, *made, "--output", model)
    assert sorted(path.name for path in model.iterdir()) == before
