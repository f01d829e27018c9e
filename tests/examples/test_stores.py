"""Vector stores in examples/: index, search again, refuse another context."""

import dataclasses
import runpy

import pytest

import cdejax
from tests.examples.conftest import EXAMPLES, run_scripts

pytest.importorskip("qdrant_client")
pytest.importorskip("langchain_core")

QUERIES = ("copy a whole directory tree", "middle value of numbers")
STORES = ("faiss_search.py", "qdrant_search.py")
SCRIPTS = (*STORES, "langchain_embeddings.py")


def found(printed):
    """{query: [(score, name), …]} of what a script printed."""
    results = {}
    for line in printed.splitlines():
        if not line.startswith("  "):
            results[line] = hits = []
        else:
            score, name, *_ = line.split()
            hits.append((float(score), name.rstrip(":")))
    return results


@pytest.fixture(scope="module")
def indexed(minilm, contextual, tmp_path_factory):
    """By script and model: the store that another process made, what it printed."""
    place = tmp_path_factory.mktemp("indexed")
    models = {"minilm": minilm, "contextual": contextual}
    asked = {
        (script, name): place / script / name for script in SCRIPTS for name in models
    }
    commands = [
        (s, models[name], store, *QUERIES) for (s, name), store in asked.items()
    ]
    pairs = zip(asked.values(), run_scripts(*commands), strict=True)
    return dict(zip(asked, pairs, strict=True))


@pytest.mark.parametrize("script", SCRIPTS)
def test_minilm_finds_what_is_asked_for(script, indexed):
    results = found(indexed[script, "minilm"][1])
    assert list(results) == list(QUERIES)
    assert [hits[0][1] for hits in results.values()] == [
        "shutil.copytree",
        "statistics.median",
    ]
    assert all(len(hits) == 3 for hits in results.values())
    assert all(0.5 < hits[0][0] <= 1 for hits in results.values())


@pytest.fixture(scope="module")
def expected(contextual):
    """Scores of the best three, with no store between."""

    def search(context):
        embedder = cdejax.load(contextual)
        corpus = runpy.run_path(str(EXAMPLES / "shared.py"))["corpus"]
        texts = [document.text for document in corpus()]
        documents = embedder.encode(texts, "document", context)
        scores = embedder.encode(list(QUERIES), "query", context) @ documents.T
        return [sorted(row, reverse=True)[:3] for row in scores.tolist()]

    return search


@pytest.mark.parametrize("script", SCRIPTS)
def test_one_context_serves_documents_and_queries(
    script, contextual, other_context, expected, indexed, run_here, tmp_path
):
    store, printed = indexed[script, "contextual"]
    context = cdejax.Context.load(store / "context")
    assert len(context) == 8
    scores = [[score for score, _ in hits] for hits in found(printed).values()]
    assert scores == [pytest.approx(row, abs=2e-3) for row in expected(context)]
    assert run_here(script, contextual, store, *QUERIES) == printed

    other = ("--context", other_context)
    if script in STORES:
        with pytest.raises(SystemExit, match="made with context"):
            run_here(script, contextual, store, *QUERIES, *other)
    elsewhere = run_here(script, contextual, tmp_path / "2", *QUERIES, *other)
    assert elsewhere != printed
    kept = cdejax.Context.load(tmp_path / "2" / "context")
    assert kept.hash == cdejax.Context.load(other_context).hash


def test_vectors_of_another_model_are_not_searched(
    contextual, minilm, run_here, tmp_path
):
    run_here("faiss_search.py", contextual, tmp_path / "store", *QUERIES)
    with pytest.raises(SystemExit, match="made with model"):
        run_here("faiss_search.py", minilm, tmp_path / "store", *QUERIES)


def test_a_context_of_another_model_is_not_kept(
    contextual, minilm, other_context, run_here, tmp_path
):
    wrong = ("--context", other_context)
    with pytest.raises(ValueError, match="is a biencoder; it takes no context"):
        run_here("faiss_search.py", minilm, tmp_path / "1", *QUERIES, *wrong)
    kept = cdejax.Context.load(other_context)
    dataclasses.replace(kept, model="0" * 16).save(tmp_path / "foreign")
    wrong = ("--context", tmp_path / "foreign")
    with pytest.raises(ValueError, match="made with other weights"):
        run_here("faiss_search.py", contextual, tmp_path / "2", *QUERIES, *wrong)
    assert not list(tmp_path.glob("*/context"))
