"""Files of rows as sources: one file, or all files that match a glob."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cdejax.config import SourceConfig
from cdejax.data.files import is_row_file, parquet_rows, read_rows
from cdejax.data.rows import Problem, Reading, Row, no_rows
from cdejax.data.sources.base import Source
from cdejax.storage.artifacts import hash_files

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowFiles(Source):
    """All files that match a path or pattern, sorted by name."""

    files: list[Path]

    forms = ("a .jsonl, .csv, .tsv or .parquet file or a glob of them",)

    @classmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The files, or None if there are none or one has an unknown format."""
        files = matching_files(config.path)
        known = bool(files) and all(map(is_row_file, files))
        return cls(config, files) if known else None

    def read(self) -> Reading:
        """Opens the files; their lines are read one by one."""
        facts: dict[str, Any] = {}
        rows = self._rows(facts)
        return Reading(rows, self.config.columns, parquet_rows(self.files), facts)

    def check(self) -> None:
        """Reads the first rows of the first file."""
        first = next(self.read().rows, None)
        if isinstance(first, Problem) and first.fatal:
            raise ValueError(f"{first.place}: {first.detail}")

    def fingerprint(self) -> str:
        """Hash of the files."""
        return hash_files(*self.files)

    def _rows(self, facts: dict[str, Any]) -> Iterator[Row | Problem]:
        """The rows of all files; files without rows are listed in `facts`."""
        path, empty = self.config.path, []
        for file in self.files:
            rows = iter(read_rows(file, self.config.columns))
            if (first := next(rows, None)) is None:
                empty.append(str(file))
            else:
                yield first
                yield from rows
        if len(empty) == len(self.files):
            yield no_rows(empty[0] if len(empty) == 1 else path)
        elif empty:
            facts["empty_files"] = empty
            _log.warning("%s: files without rows: %s", path, ", ".join(empty))


def matching_files(path: str) -> list[Path]:
    """The file called `path`, or the files that match it as a glob, sorted by name."""
    files = [Path(path)] if Path(path).is_file() else sorted(map(Path, glob.glob(path)))
    return [file for file in files if file.is_file()]
