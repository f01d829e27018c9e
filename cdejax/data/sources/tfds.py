"""TensorFlow Datasets, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cdejax.config import SourceConfig
from cdejax.data.columns import top_columns
from cdejax.data.rows import Problem, Reading, Row, no_rows
from cdejax.data.sources.base import Source, name_and_split
from cdejax.storage.artifacts import hash_files

INFO = "dataset_info.json"
"""File that describes a prepared dataset."""


@dataclass(frozen=True)
class TensorFlowDataset(Source):
    """`tfds:NAME[/CONFIG][:SPLIT]` or `tfds:FOLDER[:SPLIT]` (default split `train`).

    FOLDER is a folder with a `dataset_info.json`.
    """

    name: str
    split: str

    forms = ("`tfds:NAME[/CONFIG][:SPLIT]`", "`tfds:FOLDER[:SPLIT]`")
    library, extra = "tensorflow_datasets", "hub"

    @classmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The dataset, for a path that starts with `tfds:`."""
        parts = name_and_split(config.path, "tfds:")
        return cls(config, *parts) if parts else None

    def read(self) -> Reading:
        """Opens the dataset.

        Raises:
          ValueError: no such dataset or split, files that are not array_record, or a
            missing column.
        """
        path, columns, data = self.config.path, self.config.columns, self._open()
        names = top_columns(columns, list(data.dataset_info.features), path)
        return Reading(_rows(path, data, names), columns, len(data))

    def fingerprint(self) -> str:
        """Hash of the dataset's files."""
        return hash_files(str(self._open().dataset_info.data_dir))

    def _open(self) -> Any:
        tfds, name = self.import_library(), self.name
        try:
            if not Path(name).is_dir():
                return tfds.data_source(name, split=self.split, download=False)
            if not (Path(name) / INFO).is_file():
                inner = sorted(str(file.parent) for file in Path(name).rglob(INFO))
                hint = f"name one of {', '.join(inner)}" if inner else "write it again"
                raise ValueError(f"no {INFO} in {name}; {hint}")
            return tfds.builder_from_directory(name).as_data_source(split=self.split)
        except Exception as error:  # TFDS errors have no common base class
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"source {self.config.path!r}: cannot open it "
                f"({type(error).__name__}: {reason}). "
                "Check name and split, and that it was prepared as array_record."
            ) from None


def _rows(path: str, data: Any, names: list[str]) -> Iterator[Row | Problem]:
    if not len(data):
        yield no_rows(path)
    for number in range(len(data)):
        place = f"{path} row {number + 1}"
        row = data[number]
        try:
            yield Row(place, {name: _texts(row[name]) for name in names})
        except UnicodeDecodeError as error:
            yield Problem(place, "wrong encoding", f"not UTF-8 ({error})")


def _texts(value: Any) -> Any:
    """Decodes texts: TFDS returns bytes, and arrays or lists of bytes for sequences."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {key: _texts(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
        return _texts(value) if isinstance(value, (bytes, list)) else value
    return [_texts(inner) for inner in value] if isinstance(value, list) else value
