"""Files of rows as sources."""

import logging
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.pairs import build_pairs
from cdejax.data.sources import read_source

from .conftest import COLUMNS, ROWS, values, write_lines

LINES = "".join(f'{{"query": "q {i}", "document": "d {i}"}}\n' for i in range(3))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(name: str, tmp_path: Path) -> None:
    write_lines(tmp_path / name, ROWS)
    source = SourceConfig(path=str(tmp_path / name), columns=COLUMNS)
    assert values(source) == ROWS
    places = [row.place for row in read_source(source).rows]
    assert places == [f"{tmp_path / name}:{n}" for n in range(1, 6)]


@pytest.mark.parametrize("folder", ["plain", "set_no_neg", "hard.neg", "train:x"])
def test_a_folders_name_changes_nothing(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "rows.jsonl"
    write_lines(path, ROWS)
    assert values(SourceConfig(path=str(path), columns=COLUMNS)) == ROWS


def test_glob_is_sorted(tmp_path: Path) -> None:
    write_lines(tmp_path / "b.jsonl.gz", ROWS[3:])
    write_lines(tmp_path / "a.jsonl", ROWS[:3])
    assert values(SourceConfig(path=str(tmp_path / "*"), columns=COLUMNS)) == ROWS


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    source = SourceConfig(path=str(tmp_path / "a.parquet"), columns=COLUMNS)
    assert values(source) == ROWS
    assert read_source(source).total == 5
    bad = SourceConfig(path=source.path, columns=ColumnsConfig(query="question"))
    with pytest.raises(ValueError, match=r"no column `question`; its columns: `query`"):
        list(read_source(bad).rows)


def test_damaged_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"a\.parquet: no readable Parquet"):
        read_source(SourceConfig(path=str(file)))


@pytest.mark.parametrize("on_invalid", ["error", "skip"])
def test_an_empty_shard_among_others_is_said_and_read_over(
    on_invalid, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("cdejax"), "propagate", True)
    (tmp_path / "0.jsonl").write_text(LINES)
    (tmp_path / "1.jsonl").write_bytes(b"")
    source = SourceConfig(path=str(tmp_path / "*.jsonl"))
    config = DataConfig(sources=(source,), on_invalid=on_invalid)
    counts = build_pairs(config, 0, tmp_path / "out")
    assert counts["train_rows"] == 3
    assert counts["sources"][0]["empty_files"] == [str(tmp_path / "1.jsonl")]
    assert "files without rows" in caplog.text


def test_empty_shards_alone_are_no_source(tmp_path):
    for name in ("0.csv", "1.csv"):
        (tmp_path / name).write_text("query,document\n")
    source = SourceConfig(path=str(tmp_path / "*.csv"))
    config = DataConfig(sources=(source,), on_invalid="skip")
    with pytest.raises(ValueError, match=r"\*\.csv: holds no rows"):
        build_pairs(config, 0, tmp_path / "out")
