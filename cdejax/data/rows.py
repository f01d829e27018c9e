"""What sources yield: rows or problems, each with its place in the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdejax.config import ColumnsConfig


class Row(NamedTuple):
    """An unchecked row of a source."""

    place: str
    """Its location, e.g. `pairs.jsonl:12`."""
    value: Any
    """The row: a mapping from field names to values, if it is valid."""


class Problem(NamedTuple):
    """A problem of a row (or, if `fatal`, of the whole source)."""

    place: str
    kind: str
    detail: str
    fatal: bool = False
    """Whether it stops the run even if bad rows are skipped."""


class Pair(NamedTuple):
    """A checked row."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    domain: str = "default"
    query_id: str | None = None
    document_id: str | None = None


@dataclass
class Reading:
    """A source being read."""

    rows: Iterator[Row | Problem]
    """The rows, in the source's order."""
    columns: ColumnsConfig
    """Names of the fields (sources with a fixed layout set their own)."""
    total: int | None = None
    """Number of rows, if known in advance."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts to record about the source, e.g. the versions of the packages read."""


def excerpt(value: Any, length: int = 60) -> str:
    """The value's repr, truncated to `length` characters, for error messages."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def no_rows(place: str) -> Problem:
    """The fatal problem of a source without rows."""
    detail = "holds no rows; fill it or take it out of `sources`"
    return Problem(place, "no rows", detail, fatal=True)
