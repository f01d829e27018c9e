"""Prompts of the start model's folder: inherited, replaced or left out, never lost."""

import dataclasses
import json

import numpy as np
import pytest

from cdejax.cli.main import main
from cdejax.clustering.vectors import Vectors
from cdejax.config.load import load_config
from cdejax.data.prompts import tokens_of
from cdejax.embedding.load import load
from cdejax.recipe import stages, variant
from cdejax.recipe.export import export_variant
from cdejax.training import loop
from cdejax.training.run_model import build_model
from tests.tiny import write_recipe

E5 = {"query": "query: ", "document": "passage: "}
BGE = {"query": "Represent this sentence for searching: ", "document": ""}
NOMIC = {
    "query": "search_query: ",
    "document": "search_document: ",
    "clustering": "clustering: ",
}
QUERIES, DOCUMENTS = ["what about keel?", "mast"], ["rudder anchor tide", "wind deck"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, minilm):
    return write_recipe(
        tmp_path_factory.mktemp("recipe"),
        minilm,
        tokens={"query": {"max_length": 32}, "document": {"max_length": 32}},
        plan={"kind": "shuffled", "epochs": 1},
        data={"max_rows": 32, "heldout_fraction": 0.0},
    )


@pytest.fixture(scope="module")
def encoder(recipe):
    return recipe.parent / "encoder"


def says(encoder, prompts):
    """Writes prompts into the folder."""
    path = encoder / "config_sentence_transformers.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"prompts": prompts}))


def peers(folder):
    """sentence-transformers' vectors of the texts."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return [
        encode(texts, normalize_embeddings=True, convert_to_numpy=True)
        for encode, texts in (
            (model.encode_query, QUERIES),
            (model.encode_document, DOCUMENTS),
        )
    ]


def ours(embedder):
    return [embedder.encode(QUERIES, "query"), embedder.encode(DOCUMENTS, "document")]


def start(config):
    return variant.make_embedder(config, build_model(config), "untrained start")


@pytest.mark.parametrize("prompts", [E5, BGE, NOMIC], ids=["e5", "bge", "nomic"])
def test_untrained_start_is_what_sentence_transformers_loads(recipe, encoder, prompts):
    says(encoder, prompts)
    found = ours(start(load_config(recipe)))
    for mine, theirs in zip(found, peers(encoder), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    says(encoder, {"query": "", "document": ""})
    without = peers(encoder)[0]
    assert np.abs(found[0] - without).max() > 1e-3, "the prompt does not count"


def test_an_empty_prefix_is_none_and_another_one_wins(recipe, encoder):
    says(encoder, E5)
    changes = {"query": {"prefix": ""}, "document": {"prefix": "text: "}}
    config = load_config(recipe, {"tokens": changes})
    assert start(config).prompts == {"query": "", "document": "text: "}
    tokens = tokens_of(load_config(recipe, {"tokens": {"context": {"max_length": 9}}}))
    assert tokens.context is not None
    assert tokens.context.prefix == "passage: "


def test_tokens_of_training_have_the_inherited_prefix(recipe, encoder):
    says(encoder, E5)
    config = load_config(recipe)
    inputs = stages.Stages(config).inputs()
    tokens, embedder = inputs.tokens, start(config)
    for rows, texts, prompt in (
        (tokens.queries, inputs.pairs.queries, "query: "),
        (tokens.documents, inputs.pairs.documents, "passage: "),
    ):
        (expected,), _ = embedder.tokenizer.encode([prompt + texts[0]], 32)
        np.testing.assert_array_equal(rows[0], expected)


def test_other_prompts_make_other_tokens(recipe, encoder):
    config = load_config(recipe)
    folders = set()
    for prompts in (E5, BGE, {"query": "", "document": ""}):
        says(encoder, prompts)
        folders.add(stages.Stages(config).tokens())
    assert len(folders) == 3
    plain = dataclasses.replace(config.tokens.query, prefix="")
    unset = config.tokens.query
    assert unset.prefix is None
    same = dataclasses.replace(config.tokens, query=plain)
    again = stages.Stages(dataclasses.replace(config, tokens=same)).tokens()
    assert again in folders, "what a folder says and what a recipe says are one thing"


def test_the_export_keeps_the_prompts_that_were_trained_with(recipe, encoder, tmp_path):
    says(encoder, E5)
    config = load_config(recipe, {"tokens": {"query": {"prefix": "ask: "}}})
    config = dataclasses.replace(config, output=str(tmp_path))
    folder = loop.train(
        config, stages.Stages(config).inputs(), stages.root_of(config) / "model"
    )
    exported = export_variant("model", config)
    assert load(exported).prompts == {"query": "ask: ", "document": "passage: "}
    trained = variant.make_embedder(
        config, variant.trained_model(config, folder.name), "trained"
    )
    for mine, theirs in zip(ours(trained), peers(exported), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    started = {"training": {"init_from": str(exported)}}
    with pytest.raises(
        ValueError, match=r"has the prompt 'ask: ', .*'query: '; set the"
    ):
        tokens_of(load_config(recipe, started))
    agreed = started | {"tokens": {"query": {"prefix": "ask: "}}}
    assert tokens_of(load_config(recipe, agreed)).document.prefix == "passage: "


def test_surrogate_has_its_prompts_unless_told_otherwise(recipe, encoder):
    says(encoder, E5)
    surrogate = {"method": "encoder", "encoder": str(encoder)}
    expected = load(encoder)
    texts = None
    for changes, prompts in (
        ({}, E5),
        (
            {"query_prefix": "", "document_prefix": "d: "},
            {"query": "", "document": "d: "},
        ),
    ):
        config = load_config(recipe, {"vectors": surrogate | changes})
        made = stages.Stages(config)
        vectors = Vectors.open(made.vectors())
        texts = made.inputs().pairs.queries
        expected.prompts = prompts
        wanted = expected.encode([texts[0]], "query")[0]
        np.testing.assert_allclose(vectors.queries[0], wanted, atol=1e-6)


def test_dry_run_shows_what_the_folder_says_and_what_is_used(recipe, encoder, capsys):
    says(encoder, E5)
    options = ["--set", 'tokens.document.prefix=""']
    options += [
        "--set",
        "vectors.method=encoder",
        "--set",
        f"vectors.encoder={encoder}",
    ]
    options += ["--set", "vectors.query_prefix='ask [x]: '"]
    main(["run", "--config", str(recipe), "--dry-run", *options])
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "query prefix 'query: ' (folder: 'query: ')",
        "document prefix '' (folder: 'passage: ')",
        "surrogate's query prefix 'ask [x]: ' (folder: 'query: ')",
        "surrogate's document prefix 'passage: ' (folder: 'passage: ')",
    ):
        assert line in said
