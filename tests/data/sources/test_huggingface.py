"""Hugging Face datasets as sources."""

from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.sources import read_source

from .conftest import COLUMNS, ROWS, values


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
