"""Every kind of source gives the same rows for the same content."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.columns import lookup
from cdejax.data.rows import Problem, Row
from cdejax.data.sources import read_source, source_fingerprint

ROWS = [
    {"query": f"quéry {i} 😀", "document": f"document {i}", "negatives": ["a"] * i}
    for i in range(5)
]
COLUMNS = ColumnsConfig(negatives="negatives")


def values(source: SourceConfig) -> list[dict]:
    rows = list(read_source(source).rows)
    assert all(isinstance(row, Row) for row in rows)
    return [row.value for row in rows if isinstance(row, Row)]


def write_lines(path: Path, rows: list[dict]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(
        gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    )


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


def test_hugging_face_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(ROWS)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    source = SourceConfig(path=f"hf:{tmp_path / 'set'}", columns=COLUMNS)
    assert values(source) == ROWS
    assert read_source(source).total == 5
    with pytest.raises(ValueError, match=r"cannot open it .KeyError: 'test'"):
        read_source(SourceConfig(path=f"hf:{tmp_path / 'set'}:test"))
    bad = SourceConfig(path=source.path, columns=ColumnsConfig(document="text"))
    with pytest.raises(ValueError, match="no column `text`"):
        read_source(bad)


def test_hugging_face_name_that_cannot_be_had() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(ValueError, match=r"hf:nobody/nothing.*cannot open it"):
        read_source(SourceConfig(path="hf:nobody/nothing"))


def test_plain_names_come_before_dotted_ones() -> None:
    row = {"a": {"b": 1}, "a.b": 2, "c": {"d": {"e": 3}}}
    assert lookup(row, "a.b") == 2
    assert lookup(row, "c.d.e") == 3
    with pytest.raises(KeyError):
        lookup(row, "c.x")


def test_dotted_columns_in_a_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"in": {"q": "a"}, "out": "b"}])
    columns = ColumnsConfig(query="in.q", document="out")
    from cdejax.config import DataConfig
    from cdejax.data.pairs import Pairs, build_pairs

    source = SourceConfig(path=str(tmp_path / "a.jsonl"), columns=columns)
    build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "out")
    assert Pairs.open(tmp_path / "out").queries[0] == "a"


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    source = SourceConfig(path=str(tmp_path / "a.jsonl"))
    write_lines(tmp_path / "a.jsonl", ROWS)
    first = source_fingerprint(source)
    assert source_fingerprint(source) == first
    write_lines(tmp_path / "a.jsonl", ROWS[::-1])
    assert source_fingerprint(source) != first


def test_all_shared_files_hold_good_rows(shared_data: Path) -> None:
    files = sorted((shared_data / "pairs").glob("*.jsonl.gz"))
    assert len(files) == 12
    for file in files:
        rows = iter(read_source(SourceConfig(path=str(file))).rows)
        for _, row in zip(range(500), rows, strict=False):
            assert not isinstance(row, Problem)
            assert set(row.value) >= {"query", "document", "domain"}


def test_reading_loads_no_heavy_library(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ROWS)
    code = (
        "import sys; from cdejax.config import *; from cdejax.data.pairs import *\n"
        "from pathlib import Path\n"
        f"source = SourceConfig(path={str(tmp_path / 'a.jsonl')!r})\n"
        "config = DataConfig(sources=(source,))\n"
        f"build_pairs(config, 0, Path({str(tmp_path / 'out')!r}))\n"
        "heavy = 'torch transformers tensorflow tensorflow_datasets datasets sklearn'\n"
        "assert not set(heavy.split()) & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
