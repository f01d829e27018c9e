"""TensorFlow datasets as sources."""

import json
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.pairs import Pairs, build_pairs
from cdejax.data.sources import read_source
from cdejax.data.write_tfds import write_tfds

from .conftest import COLUMNS, ROWS

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record")


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return DataConfig(sources=(SourceConfig(path=str(file), columns=COLUMNS),))


def test_the_same_pairs_by_either_way(config: DataConfig, tmp_path: Path) -> None:
    write_tfds(config, tmp_path / "tfds")
    path = f"tfds:{tmp_path}/tfds/pairs/1.0.0"
    again = DataConfig(sources=(SourceConfig(path=path, columns=COLUMNS),))
    build_pairs(config, 0, tmp_path / "a")
    build_pairs(again, 0, tmp_path / "b")
    a, b = Pairs.open(tmp_path / "a"), Pairs.open(tmp_path / "b")
    assert list(a.documents) == list(b.documents)
    assert list(a.train.negatives.values) == list(b.train.negatives.values)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{out}/pairs/1.0.0:test", "Unknown split 'test'"),
        ("{out}", r"no dataset_info\.json in .*name one of .*/pairs/1\.0\.0"),
        ("no_such_dataset_here", "Dataset no_such_dataset_here not found"),
    ],
)
def test_not_there(path: str, message: str, config: DataConfig, tmp_path: Path) -> None:
    write_tfds(config, tmp_path / "out")
    name = "tfds:" + path.format(out=tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        read_source(SourceConfig(path=name))


def test_missing_column(config: DataConfig, tmp_path: Path) -> None:
    write_tfds(config, tmp_path / "out")
    source = SourceConfig(
        path=f"tfds:{tmp_path}/out/pairs/1.0.0", columns=ColumnsConfig(query="title")
    )
    with pytest.raises(ValueError, match=r"no column `title`; its columns: .*`query`"):
        read_source(source)
