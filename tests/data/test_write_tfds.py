"""TFDS without TensorFlow: what is written comes back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, Config, DataConfig, SourceConfig
from cdejax.data import write_tfds as tfds
from cdejax.data.rows import Row
from cdejax.data.sources import read_source
from cdejax.storage.artifacts import read_manifest

tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record")

ROWS = [
    {
        "query": f"quéry {i} 😀",
        "document": f"línea {i}\nzwei",
        "domain": "ab"[i % 2],
        "negatives": [f"nö {n}" for n in range(i % 3)],
    }
    for i in range(10)
]
WRITE = """
import sys
from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.write_tfds import write_tfds
columns = ColumnsConfig(negatives="negatives", domain="domain")
source = SourceConfig(path=sys.argv[1], columns=columns)
write_tfds(DataConfig(sources=(source,)), sys.argv[2])
"""
COLUMNS = ColumnsConfig(negatives="negatives", domain="domain")


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return DataConfig(sources=(SourceConfig(path=str(file), columns=COLUMNS),))


def test_round_trip(config: DataConfig, tmp_path: Path) -> None:
    folder = tfds.tfds_stage(Config(data=config), tmp_path / "runs")
    assert read_manifest(folder)["counts"]["rows"] == 10
    path = f"tfds:{folder}/pairs/1.0.0"
    source = SourceConfig(path=path, columns=COLUMNS)
    rows = list(read_source(source).rows)
    assert [row.value for row in rows if isinstance(row, Row)] == ROWS
    assert rows[3].place == f"{path} row 4"
    assert read_source(source).total == 10
    assert "tensorflow" not in sys.modules


def test_every_process_writes_the_same_bytes(config: DataConfig, tmp_path) -> None:
    argv = [sys.executable, "-c", WRITE, config.sources[0].path]
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        subprocess.run([*argv, str(folder)], check=True)
    names = [path.name for path in (folders[0] / "pairs/1.0.0").iterdir()]
    assert len(names) == 3
    for name in names:
        one, other = ((f / "pairs/1.0.0" / name).read_bytes() for f in folders)
        assert one == other


def test_read_by_tfds_itself(config: DataConfig, tmp_path: Path) -> None:
    tfds.write_tfds(config, tmp_path / "out")
    builder = tensorflow_datasets.builder_from_directory(tmp_path / "out/pairs/1.0.0")
    assert builder.info.splits["train"].num_examples == 10
    example = builder.as_data_source(split="train")[5]
    assert example["query"].decode() == ROWS[5]["query"]
    assert [n.decode() for n in example["negatives"]] == ROWS[5]["negatives"]
    named = tensorflow_datasets.data_source(
        "pairs", split="train[5:]", data_dir=tmp_path / "out"
    )
    assert len(named) == 5


def test_shards(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfds, "SHARD_ROWS", 4)
    assert tfds.write_tfds(config, tmp_path / "out")["shards"] == 3
    folder = tmp_path / "out/pairs/1.0.0"
    names = sorted(path.name for path in folder.glob("*array_record*"))
    assert names == [f"pairs-train.array_record-{i:05d}-of-00003" for i in range(3)]
    rows = read_source(SourceConfig(path=f"tfds:{folder}", columns=COLUMNS)).rows
    assert [row.value for row in rows if isinstance(row, Row)] == ROWS


def test_ids(tmp_path: Path) -> None:
    rows = [{**row, "id": i} for i, row in enumerate(ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = ColumnsConfig(query_id="id")
    with_ids = SourceConfig(path=str(tmp_path / "rows.jsonl"), columns=columns)
    plain = SourceConfig(path=str(tmp_path / "rows.jsonl"))
    tfds.write_tfds(DataConfig(sources=(with_ids,)), tmp_path / "out")
    read = SourceConfig(
        path=f"tfds:{tmp_path}/out/pairs/1.0.0",
        columns=ColumnsConfig(query_id="query_id"),
    )
    values = [row.value for row in read_source(read).rows if isinstance(row, Row)]
    assert [value["query_id"] for value in values] == [str(i) for i in range(10)]
    with pytest.raises(ValueError, match="in all of them or in none"):
        tfds.write_tfds(DataConfig(sources=(with_ids, plain)), tmp_path / "mixed")


def test_bad_rows_stop_the_writer(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"query": "q", "document": null}')
    source = SourceConfig(path=str(tmp_path / "rows.jsonl"))
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: field `document` is null"):
        tfds.write_tfds(DataConfig(sources=(source,)), tmp_path / "out")
    assert not list(tmp_path.rglob("dataset_info.json"))
