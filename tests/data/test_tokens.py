"""The token store: content, counts, resumption after SIGKILL."""

import dataclasses
import inspect
import json
import logging
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass

import numpy as np
import pytest

from cdejax.config import (
    Config,
    DataConfig,
    ModelConfig,
    SideConfig,
    SourceConfig,
    TokensConfig,
)
from cdejax.data import tokens as module
from cdejax.data.pairs import Pairs, pairs_stage
from cdejax.data.ragged import Ragged
from cdejax.data.tokenizer import Tokenizer
from cdejax.data.tokens import Tokens, build_tokens, tokens_stage, write_tokens
from cdejax.storage.artifacts import read_manifest


@dataclass
class FakePairs:
    queries: list[str]
    documents: list[str]
    query_domain: np.ndarray
    document_domain: np.ndarray
    domains: list[str]


@pytest.fixture(scope="module")
def tokenizer(minilm):
    return Tokenizer.load(minilm)


@pytest.fixture
def pairs():
    return FakePairs(
        ["first query", "second query", "third"],
        ["a document", "another one " * 20],
        np.array([0, 1, 1], np.int32),
        np.array([0, 1], np.int32),
        ["law", "films"],
    )


def test_prefixes_limits_and_counts(pairs, tokenizer, tmp_path):
    config = TokensConfig(
        query=SideConfig("query: ", 16, {"films": "film: "}),
        document=SideConfig("passage: ", 12),
        context=SideConfig("passage: ", 6),
    )
    counts = build_tokens(pairs, tokenizer, config, tmp_path)
    expected = {
        "queries": (["query: first query", "film: second query", "film: third"], 16),
        "documents": (["passage: " + d for d in pairs.documents], 12),
        "context": (["passage: " + d for d in pairs.documents], 6),
    }
    for name, (texts, limit) in expected.items():
        rows, cut = tokenizer.encode(texts, limit)
        stored = Ragged.open(tmp_path / name)
        assert [r.tolist() for r in stored] == [r.tolist() for r in rows]
        assert stored.values.dtype == np.uint16
        lengths = [len(r) for r in rows]
        assert counts[name] == {
            "rows": len(texts),
            "tokens": sum(lengths),
            "truncated": cut.sum(),
            "special_only": 0,
            "max_length": max(lengths),
            "mean_length": pytest.approx(np.mean(lengths), abs=1e-3),
        }
    assert counts["documents"]["truncated"] == 1


def test_open(pairs, tokenizer, tmp_path):
    build_tokens(pairs, tokenizer, TokensConfig(), tmp_path)
    with pytest.raises(ValueError, match="not a finished artefact"):
        Tokens.open(tmp_path)
    manifest = '{"fingerprint": "f", "spec": {}, "counts": {}}'
    (tmp_path / "manifest.json").write_text(manifest)
    tokens = Tokens.open(tmp_path)
    assert tokens.context is tokens.documents
    assert (tokens.pad_id, tokens.vocab_size) == (0, 30522)
    assert Tokenizer.load(tokens.tokenizer_folder).vocab_size == 30522
    assert tokens.queries[2].tolist() == tokenizer.encode(["third"])[0][0].tolist()


def test_large_vocabulary_is_stored_as_int32(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "vocab_size", 70_000)
    write_tokens(["text"], [""], tokenizer, 8, tmp_path)
    assert Ragged.open(tmp_path).values.dtype == np.int32


def test_texts_of_special_tokens_only_are_counted_and_said(tokenizer, tmp_path, caplog):
    texts = ["a text", "\u200b", "[SEP] [MASK]", "\U0001f642", "another"]
    prefixes = ["", "", "query: ", "query: ", "query: "]
    with caplog.at_level(logging.WARNING, "cdejax"):
        counts = write_tokens(texts, prefixes, tokenizer, 16, tmp_path / "some")
    assert counts["special_only"] == 3
    assert counts["truncated"] == 0
    (record,) = caplog.records
    assert "3 of 5 texts hold special tokens only" in record.getMessage()
    caplog.clear()
    counts = write_tokens(["long words " * 9], [""], tokenizer, 8, tmp_path / "none")
    assert (counts["special_only"], counts["truncated"]) == (0, 1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            TokensConfig(query=SideConfig(domain_prefixes={"film": "x"})),
            r"tokens\.query\.domain_prefixes.*'film'.*mean 'films'",
        ),
        (
            TokensConfig(context=SideConfig(max_length=2)),
            r"tokens\.context\.max_length: 2 leaves no room",
        ),
    ],
)
def test_bad_settings(pairs, tokenizer, tmp_path, config, match):
    with pytest.raises(ValueError, match=match):
        build_tokens(pairs, tokenizer, config, tmp_path)


def text_of_the_test(i: int) -> str:
    return f"text number {i} " + "of many words " * (i % 9)


RUN = """
    import sys, time
    from cdejax.data import tokens
    from cdejax.data.tokenizer import Tokenizer
    from pathlib import Path

    class Slow(Tokenizer):
        def encode(self, texts, max_length):
            time.sleep(0.05)
            return super().encode(texts, max_length)

    tokens.BLOCK = 100
    texts = [text_of_the_test(i) for i in range(4000)]
    tokens.write_tokens(
        texts, [""] * len(texts), Slow.load(sys.argv[1]), 24, Path(sys.argv[2])
    )
"""


def test_killed_and_restarted_it_goes_on(minilm, tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "killed"
    code = inspect.getsource(text_of_the_test) + textwrap.dedent(RUN)
    command = [sys.executable, "-c", code, str(minilm), str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    offsets = folder / "offsets.bin"
    deadline = time.monotonic() + 60
    while not offsets.is_file() or offsets.stat().st_size < 8 * 500:
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = offsets.stat().st_size // 8 - 1
    assert 0 < done < 4000
    with open(folder / "values.bin", "ab") as stream:  # half a row, never counted
        stream.write(b"\x01\x02\x03")

    encoded = []
    encode = tokenizer.encode
    monkeypatch.setattr(module, "BLOCK", 100)
    monkeypatch.setattr(
        tokenizer,
        "encode",
        lambda texts, n: (encoded.extend(texts), encode(texts, n))[1],
    )
    texts, none = [text_of_the_test(i) for i in range(4000)], [""] * 4000
    counts = write_tokens(texts, none, tokenizer, 24, folder)
    assert encoded == texts[done:]
    monkeypatch.undo()
    assert counts == write_tokens(texts, none, tokenizer, 24, tmp_path / "whole")
    for name in ("values.bin", "offsets.bin", "truncated.bin", "dtype"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_stage_on_a_pairs_artefact(minilm, tokenizer, tmp_path):
    rows = [{"query": f"query {i}", "document": f"text {i % 7}"} for i in range(20)]
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Config(
        data=DataConfig(sources=(SourceConfig(str(source)),)),
        model=ModelConfig(encoder=str(minilm)),
        tokens=TokensConfig(query=SideConfig("q: ", 8)),
    )
    folder = pairs_stage(config, tmp_path)
    made = tokens_stage(config, tmp_path, folder)
    assert tokens_stage(config, tmp_path, folder) == made
    pairs, tokens = Pairs.open(folder), Tokens.open(made)
    assert len(tokens.queries) == len(pairs.queries) == 20
    assert len(tokens.documents) == len(pairs.documents) == 7
    expected = tokenizer.encode([f"q: {pairs.queries[3]}"], 8)[0][0]
    assert tokens.queries[3].tolist() == expected.tolist()
    assert read_manifest(made)["counts"]["queries"]["rows"] == 20
    longer = dataclasses.replace(config, tokens=TokensConfig())
    assert tokens_stage(longer, tmp_path, folder) != made
    with pytest.raises(ValueError, match="no such folder"):
        tokens_stage(Config(), tmp_path, folder)
