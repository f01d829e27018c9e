"""BEIR folders as pairs: one pair per judgment of positive grade."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.beir import (
    Folder,
    beir_folder,
    check_folder,
    read_folder,
    unknown_id,
)
from cdejax.data.rows import Problem, Reading, Row
from cdejax.data.sources.base import Source, fixed_layout
from cdejax.storage.artifacts import hash_files


@dataclass(frozen=True)
class BeirFolder(Source):
    """FOLDER[:SPLIT] with corpus, queries and qrels (default split `train`)."""

    folder: Path
    split: str

    forms = ("a BEIR folder[:SPLIT]",)

    @classmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The source, if there is a folder of this name."""
        parts = beir_folder(config.path)
        return cls(config, *parts) if parts else None

    def read(self) -> Reading:
        """Reads the folder; a judgment that names an unknown id is an invalid row.

        Raises:
          ValueError: a file is missing or holds invalid rows, or `columns` are set.
        """
        held = read_folder(self.folder, self.split)
        positive = [judgment for judgment in held.judgments if judgment.grade > 0]
        held = held._replace(judgments=positive)
        columns = ColumnsConfig(query_id="query_id", document_id="document_id")
        reading = Reading(_pairs(held), columns, len(positive))
        return fixed_layout(self.config, reading)

    def check(self) -> None:
        """Checks that the files exist, and the first rows of corpus and queries."""
        check_folder(self.folder, self.split)

    def fingerprint(self) -> str:
        """Hash of all files of the folder."""
        return hash_files(self.folder)


def _pairs(held: Folder) -> Iterator[Row | Problem]:
    for judgment in held.judgments:
        if problem := unknown_id(judgment, held.queries, held.documents):
            yield problem
            continue
        place, query, document, _ = judgment
        fields = {"query_id": query, "document_id": document}
        texts = {"query": held.queries[query], "document": held.documents[document]}
        yield Row(place, fields | texts)
