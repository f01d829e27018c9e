"""`cdejax encode` and `cdejax search` on files as users have them."""

import json
import os
import sys

import numpy as np
import pytest

import cdejax
from cdejax.cli import model_commands
from cdejax.cli.main import main
from cdejax.models.context import Context

DOCUMENTS = ["Paris is in France", "the sun is a star", "a file is opened by name"]


class FakeContextual:
    """A contextual model whose vectors tell what they were made of."""

    context_size = 2

    def context(self, texts, seed=0):
        vectors = np.full((1, 2), len(texts) + 10 * seed, np.float32)
        return Context(np.arange(1), vectors, np.ones(1, bool), seed, "model")

    def encode(self, texts, kind, context, batch_size=128, show_progress=False):
        rows = [[len(text), context.vectors[0, 0]] for text in texts]
        return np.asarray(rows, np.float32)


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "docs.txt"
    path.write_text("\n".join(DOCUMENTS) + "\n")
    return path


@pytest.fixture
def contextual(monkeypatch):
    monkeypatch.setattr(model_commands, "load", lambda folder: FakeContextual())


def run(*arguments):
    main([str(a) for a in arguments])


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_encode_equals_the_embedder(minilm, documents, tmp_path, capsys):
    output = tmp_path / "vectors.npy"
    run("encode", "--model", minilm, "--texts", documents, "--output", output)
    vectors = np.load(output)
    assert capsys.readouterr().out.strip() == str(output)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, cdejax.load(minilm).encode(DOCUMENTS, "document"))


def test_search_ranks_and_writes_json_lines(minilm, tmp_path, capsys):
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"_id": f"d{i}", "text": t} for i, t in enumerate(DOCUMENTS)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out.jsonl"
    asked = ["--query", "where is Paris?", "--query", "open a [file]"]
    given = ["--model", minilm, "--documents", corpus, "--output", output]
    run("search", *given, *asked, "--k", 2)
    first, second = map(json.loads, output.read_text().splitlines())
    assert first["query"] == "where is Paris?"
    assert [hit["rank"] for hit in first["results"]] == [1, 2]
    assert first["results"][0]["id"] == "d0"
    assert first["results"][0]["score"] > first["results"][1]["score"]
    assert second["results"][0] == {
        "rank": 1,
        "id": "d2",
        "score": second["results"][0]["score"],
        "text": DOCUMENTS[2],
    }
    printed = capsys.readouterr().out
    assert "open a [file]" in printed
    assert DOCUMENTS[0] in printed


def test_context_is_drawn_from_the_documents(contextual, documents, capsys):
    asked = ["search", "--model", "m", "--documents", documents, "--query", "abc"]
    run(*asked)  # each score is length · length + context · context
    assert f"{3 * len(DOCUMENTS[2]) + 3 * 3:.4f}" in capsys.readouterr().out
    run(*asked, "--seed", 1)
    assert f"{3 * len(DOCUMENTS[2]) + 13 * 13:.4f}" in capsys.readouterr().out


def test_context_from_texts_or_saved(contextual, documents, tmp_path):
    output = tmp_path / "v.npy"
    given = ["encode", "--model", "m", "--texts", documents, "--output", output]
    other = tmp_path / "other.txt"
    other.write_text("x\n")
    run(*given, "--context", other)
    assert np.load(output)[0].tolist() == [len(DOCUMENTS[0]), 1]
    FakeContextual().context(DOCUMENTS, seed=2).save(tmp_path / "saved")
    run(*given, "--context", tmp_path / "saved", "--overwrite")
    assert np.load(output)[0].tolist() == [len(DOCUMENTS[0]), 23]


def test_encode_asks_for_the_context(contextual, documents, tmp_path, capsys):
    output = tmp_path / "v.npy"
    given = ["encode", "--model", "m", "--texts", documents, "--output", output]
    assert "m is contextual: give `--context`" in fails(capsys, *given)
    assert not output.exists()


def test_nothing_is_overwritten_unasked(minilm, documents, tmp_path, capsys):
    output = tmp_path / "v.npy"
    output.write_bytes(b"precious")
    given = ["encode", "--model", minilm, "--texts", documents, "--output", output]
    assert "add --overwrite" in fails(capsys, *given)
    assert output.read_bytes() == b"precious"
    run(*given, "--overwrite")
    assert np.load(output).shape == (3, 384)
    assert sorted(os.listdir(tmp_path)) == ["docs.txt", "v.npy"]


# Lines of the texts' file; what is said of them.
BAD_TEXTS = {
    "a.txt": (b"one\n\nthree\n", "a.txt:2: there is no text"),
    "b.txt": (b"one\nca\xe9\n", "b.txt:2: not UTF-8"),
    "c.txt": (b"", "c.txt: holds no text"),
    "d.txt": (b"a\0b\n", "d.txt:1: field `text` holds a NUL"),
    "e.csv": (b"text\n", "e.csv: give a .txt or .jsonl file"),
    "f.jsonl": (b'{"body": "x"}\n', "f.jsonl:1: needs the field `text`"),
    "g.jsonl": (b"{text}\n", "g.jsonl:1: not JSON"),
    "h.jsonl": (b'{"text": 3}\n', "h.jsonl:1: field `text` is a int"),
    "i.jsonl": (
        b'{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n',
        "i.jsonl:2: id 'a' appears twice",
    ),
    "j.jsonl": (b'{"_id": [], "text": "x"}\n', "j.jsonl:1: the id is []"),
    "k.jsonl": (b'{"text": "\\ud800"}\n', "k.jsonl:1: field `text` holds the lone"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_texts(name, tmp_path, capsys):
    content, message = BAD_TEXTS[name]
    (tmp_path / name).write_bytes(content)
    output = tmp_path / "v.npy"
    given = ["encode", "--model", "m", "--texts", tmp_path / name, "--output", output]
    assert message in fails(capsys, *given)


def test_an_output_never_replaces_what_is_read(minilm, documents, tmp_path, capsys):
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"text": "a star"}\n')
    link = tmp_path / "link.jsonl"
    link.symlink_to(queries)
    given = ["search", "--model", minilm, "--documents", documents, "--overwrite"]
    for output in (documents, queries, link):
        asked = [*given, "--queries", queries, "--output", output]
        assert "is also an input; choose another name" in fails(capsys, *asked)
    assert documents.read_text().splitlines() == DOCUMENTS


def test_more_results_than_documents_cost_nothing(minilm, documents, tmp_path):
    output = tmp_path / "found.jsonl"
    given = ["search", "--model", minilm, "--documents", documents, "--query", "sun"]
    run(*given, "--k", 10**12, "--output", output)
    assert len(json.loads(output.read_text())["results"]) == len(DOCUMENTS)


def test_titles_come_first_and_ids_may_be_missing(tmp_path):
    from cdejax.data.texts import read_texts

    path = tmp_path / "docs.jsonl"
    path.write_text('{"title": "T", "text": "x"}\n{"title": "", "text": " y"}\n')
    assert read_texts(path) == {"1": "T x", "2": " y"}


BAD_REQUESTS = {
    "no query": ([], "give either `--query TEXT` or `--queries FILE`"),
    "query of nothing": (["--query", " "], "--query: the text is empty"),
    "both": (["--query", "a", "--queries", "q.txt"], "give either"),
    "no results": (["--query", "a", "--k", "0"], "--k 0: at least 1"),
    "missing folder": (
        ["--query", "a", "--output", "no/such/file"],
        "no/such/file: there is no folder no/such; make it first",
    ),
    "no model": (["--query", "a"], "'m': no such folder"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests(case, documents, capsys):
    arguments, message = BAD_REQUESTS[case]
    given = ["search", "--model", "m", "--documents", documents, *arguments]
    assert message in fails(capsys, *given)


def test_search_needs_no_torch(minilm, documents):
    import subprocess

    code = (
        "import sys; from cdejax.cli.main import main; "
        f"main(['search', '--model', {str(minilm)!r}, '--documents', "
        f"{str(documents)!r}, '--query', 'a']); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
