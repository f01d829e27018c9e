"""Names of columns: plain, dotted, inside lists."""

import json
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.columns import lookup
from cdejax.data.pairs import Pairs, build_pairs


def test_plain_names_come_before_dotted_ones() -> None:
    row = {"a": {"b": 1}, "a.b": 2, "c": {"d": {"e": 3}}}
    assert lookup(row, "a.b") == 2
    assert lookup(row, "c.d.e") == 3
    with pytest.raises(KeyError):
        lookup(row, "c.x")


def test_dotted_columns_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"in": {"q": "a"}, "out": "b"}))
    columns = ColumnsConfig(query="in.q", document="out")
    source = SourceConfig(path=str(tmp_path / "a.jsonl"), columns=columns)
    build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "out")
    assert Pairs.open(tmp_path / "out").queries[0] == "a"


def test_paths_reach_into_lists_of_objects(tmp_path):
    row = {
        "query": "q",
        "pos": [{"text": "first"}, {"text": "second"}],
        "neg": [{"text": "x"}, {"text": "y"}],
    }
    assert lookup(row, "pos.1.text") == "second"
    assert lookup(row, "neg.*.text") == ["x", "y"]
    for name in ("pos.2.text", "pos.-1.text", "pos.text", "pos.0.body", "query.0"):
        with pytest.raises(KeyError):
            lookup(row, name)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    columns = ColumnsConfig(document="pos.0.text", negatives="neg.*.text")
    for name in ("a.jsonl", "a.parquet"):
        source = SourceConfig(path=str(tmp_path / name), columns=columns)
        build_pairs(DataConfig(sources=(source,)), 0, tmp_path / name[2:])
        assert list(Pairs.open(tmp_path / name[2:]).documents) == ["first", "x", "y"]
