"""What sources yield: rows with their place, or problems with theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdejax.config import ColumnsConfig


class Row(NamedTuple):
    """A row as the source holds it, unchecked."""

    place: str
    """Where it stands, e.g. `pairs.jsonl:12`."""
    value: Any
    """The row: a mapping from field names to values, if all is well."""


class Problem(NamedTuple):
    """What is wrong with a row (or, if `fatal`, with the whole source)."""

    place: str
    kind: str
    detail: str
    fatal: bool = False
    """Stops the run even where bad rows are skipped."""


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
    """Which field holds what (sources of a fixed layout bring their own)."""
    total: int | None = None
    """Number of rows, where it is known beforehand."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What to record about the source, e.g. the versions of the packages read."""


def excerpt(value: Any, length: int = 60) -> str:
    """The value's repr, cut to `length` characters, for messages."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def no_rows(place: str) -> Problem:
    """The problem of a source without rows, which stops the run."""
    detail = "holds no rows; fill it or take it out of `sources`"
    return Problem(place, "no rows", detail, fatal=True)
