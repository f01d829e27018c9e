"""Collects pairs from all sources: texts are written once, pairs kept as integers."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cdejax.config import DataConfig, SourceConfig
from cdejax.data.ragged import RaggedWriter
from cdejax.data.rows import Pair
from cdejax.data.sources import read_source
from cdejax.data.validation import Report, checked
from cdejax.runtime.progress import progress

_FLUSH = 4096


class TextTable:
    """Texts of one side, unique within a domain, written as they are added."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.content = array("q")
        """Content id of each row's text."""
        self.domain = array("i")
        self.ids: dict[int, str] = {}
        """External ids of the rows that have one (the first, if there are several)."""
        self._rows: dict[tuple[int, int], int] = {}
        self._writer = RaggedWriter(folder, np.uint8)
        self._pending: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.content)

    def add(self, text: str, content: int, domain: int, id: str | None = None) -> int:
        """Returns the row of the text, adding it if it is new to the domain."""
        row = self._rows.setdefault((domain, content), len(self))
        if id is not None:
            self.ids.setdefault(row, id)
        if row == len(self):
            self.content.append(content)
            self.domain.append(domain)
            self._pending.append(np.frombuffer(text.encode(), np.uint8))
            if len(self._pending) >= _FLUSH:
                self._flush()
        return row

    def _flush(self) -> None:
        self._writer.append(self._pending)
        self._pending = []

    def close(self) -> None:
        """Writes what is pending."""
        self._flush()
        self._writer.close()


class Collection:
    """Pairs as rows of two text tables."""

    def __init__(self, folder: Path):
        self.queries = TextTable(folder / "queries")
        self.documents = TextTable(folder / "documents")
        self.domains: dict[str, int] = {}
        self.query, self.document = array("i"), array("i")
        self.negatives: dict[int, list[int]] = {}
        """Document rows of the negatives, by pair, for pairs that have any."""
        self.duplicates = 0
        self.content_hash = array("Q")
        """64-bit hash of each content id's text."""
        self._contents: dict[bytes, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.query)

    def add(self, pair: Pair) -> None:
        """Adds a pair; a duplicate within its domain only adds its negatives."""
        domain = self.domains.setdefault(pair.domain, len(self.domains))
        query, document = (
            table.add(text, self._content(text), domain, id)
            for table, text, id in (
                (self.queries, pair.query, pair.query_id),
                (self.documents, pair.document, pair.document_id),
            )
        )
        row = self._pairs.setdefault((query, document), len(self))
        if row == len(self):
            self.query.append(query)
            self.document.append(document)
        else:
            self.duplicates += 1
        if pair.negatives:
            rows = self.negatives.setdefault(row, [])
            for text in pair.negatives:
                rows.append(self.documents.add(text, self._content(text), domain))

    def _content(self, text: str) -> int:
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        content = self._contents.setdefault(digest, len(self._contents))
        if content == len(self.content_hash):
            self.content_hash.append(int.from_bytes(digest[:8], "little"))
        return content

    def close(self) -> None:
        """Writes what is pending."""
        self.queries.close()
        self.documents.close()


def collect(
    config: DataConfig, folder: Path, report: Report
) -> tuple[Collection, dict[str, Any]]:
    """Reads all sources into text tables under `folder`.

    Returns:
      The pairs, and counts: `sources` (path, rows, facts of each), `rows`, `invalid`
      (problems by kind), `invalid_rows`, `duplicate_pairs`.

    Raises:
      ValueError: invalid rows that must stop the run, or no valid row at all.
    """
    pairs = Collection(folder)
    sources = [_collect_source(s, config, pairs, report) for s in config.sources]
    pairs.close()
    report.stop(config.on_invalid)
    if not len(pairs):
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in report.kinds.most_common())
        names = ", ".join(source.path for source in config.sources)
        raise ValueError(
            f"{names}: no valid row in any source ({kinds or 'they hold no rows'})."
        )
    return pairs, {
        "sources": sources,
        "rows": sum(source["rows"] for source in sources),
        "invalid_rows": report.bad_rows,
        "invalid": dict(report.kinds),
        "duplicate_pairs": pairs.duplicates,
    }


def _collect_source(
    source: SourceConfig, config: DataConfig, pairs: Collection, report: Report
) -> Mapping[str, Any]:
    reading = read_source(source)
    rows, bad = 0, report.bad_rows
    domains: Counter[str] = Counter()
    with progress(f"read {source.path}", reading.total) as advance:
        for rows, pair in enumerate(checked(reading, source.domain, config, report), 1):
            pairs.add(pair)
            domains[pair.domain] += 1
            if rows % 256 == 0:
                advance(256)
        advance(rows % 256)
    bad = report.bad_rows - bad
    facts = {"path": source.path, "rows": rows + bad, "invalid_rows": bad}
    return facts | {"rows_by_domain": dict(domains), **reading.facts}
