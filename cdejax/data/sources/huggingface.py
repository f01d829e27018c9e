"""Hugging Face datasets, by name or as written by `save_to_disk`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cdejax.config import SourceConfig
from cdejax.data.columns import top_columns
from cdejax.data.rows import Problem, Reading, Row, no_rows
from cdejax.data.sources.base import Source, name_and_split

_PREFIX = "hf:"


@dataclass(frozen=True)
class HuggingFaceDataset(Source):
    """`hf:NAME[/CONFIG][:SPLIT]` or `hf:FOLDER[:SPLIT]` (default split `train`).

    NAME is OWNER/DATASET (or just DATASET), so a third part is the configuration.
    """

    name: str
    split: str

    forms = (
        "`hf:NAME[/CONFIG][:SPLIT]`",
        "`hf:FOLDER[:SPLIT]` (written by save_to_disk)",
    )
    library, extra = "datasets", "hub"

    @classmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The dataset, for a path that starts with `hf:`."""
        parts = name_and_split(config.path, _PREFIX)
        return cls(config, *parts) if parts else None

    def read(self) -> Reading:
        """Opens the dataset; its rows are numbered from 1."""
        columns, dataset = self.config.columns, self._open()
        names = top_columns(columns, dataset.column_names, self.config.path)
        rows = _numbered(self.config.path, dataset.select_columns(names))
        return Reading(rows, columns, len(dataset))

    def fingerprint(self) -> str:
        """The library's own hash of the dataset."""
        return self._open()._fingerprint

    @classmethod
    def hub_dataset(cls, path: str) -> str | None:
        """OWNER/DATASET, or None for a local folder."""
        parts = name_and_split(path, _PREFIX)
        if parts is None or Path(parts[0]).exists():
            return None
        return _dataset_and_config(parts[0])[0]

    def _open(self) -> Any:
        datasets = self.import_library()
        name, config = _dataset_and_config(self.name)
        try:
            if not Path(self.name).is_dir():
                return datasets.load_dataset(name, *config, split=self.split)
            dataset = datasets.load_from_disk(self.name)
            if isinstance(dataset, datasets.DatasetDict):
                return dataset[self.split]
            return dataset
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(
                f"source {self.config.path!r}: cannot open it "
                f"({type(error).__name__}: {error}). "
                "Check name, configuration and split."
            ) from None


def _dataset_and_config(name: str) -> tuple[str, list[str]]:
    parts = name.split("/")
    return "/".join(parts[:2]), parts[2:]


def _numbered(path: str, rows: Any) -> Iterator[Row | Problem]:
    number = 0
    for number, row in enumerate(rows, 1):
        yield Row(f"{path} row {number}", row)
    if number == 0:
        yield no_rows(path)
