"""BEIR folders as pairs."""

from pathlib import Path

import pytest

from cdejax.config import DataConfig, SourceConfig
from cdejax.data.pairs import Pairs, build_pairs


def test_pairs_of_unknown_ids_are_bad_rows(beir: Path, tmp_path: Path) -> None:
    with open(beir / "qrels" / "test.tsv", "a") as stream:
        stream.write("q1\td9\t1\n")
    source = SourceConfig(path=f"{beir}:test")
    with pytest.raises(ValueError, match=r"document id 'd9'(?s:.*)on_invalid: skip"):
        build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "one")
    skip = DataConfig(sources=(source,), on_invalid="skip")
    counts = build_pairs(skip, 0, tmp_path / "two")
    assert counts["invalid"] == {"unknown id": 1}
    assert counts["train_rows"] == 3


def test_pairs(beir: Path, tmp_path: Path) -> None:
    source = SourceConfig(path=f"{beir}:test", domain="set")
    build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "out")
    pairs = Pairs.open(tmp_path / "out")
    rows = [
        (pairs.query_ids[q], pairs.document_ids[d], pairs.documents[d])
        for q, d in zip(pairs.train.query, pairs.train.document, strict=True)
    ]
    assert rows == [
        ("q1", "d1", "Title text one"),
        ("q2", "d4", "no title"),
        ("q2", "d1", "Title text one"),
    ]
    assert pairs.domains == ["set"]


def test_pairs_never_take_the_test_split_by_default(beir: Path, tmp_path: Path) -> None:
    config = DataConfig(sources=(SourceConfig(path=str(beir)),))
    with pytest.raises(ValueError, match=r"train\.tsv: no such file; splits.*: test"):
        build_pairs(config, 0, tmp_path / "out")


def test_empty_documents_are_no_pairs(beir: Path, tmp_path: Path) -> None:
    with open(beir / "qrels" / "test.tsv", "a") as stream:
        stream.write("q4\td3\t1\n")
    config = DataConfig(sources=(SourceConfig(path=f"{beir}:test"),))
    with pytest.raises(ValueError, match=r"test\.tsv:7: field `document` is empty"):
        build_pairs(config, 0, tmp_path / "out")
