"""Validation of every row of a source; invalid rows are reported by file and line."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdejax.config import ColumnsConfig, DataConfig
from cdejax.data.columns import lookup
from cdejax.data.rows import Pair, Problem, Reading, Row, excerpt

SHOWN = 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_MISSING = object()
_MAX_NAME = 1000
_ADVICE = "Fix them, or set `on_invalid: skip` to leave those rows out."


def text_problem(text: Any, max_characters: int) -> tuple[str, str] | None:
    """The reason why `text` is not a valid text, as (kind, detail), or None."""
    if text is None:
        return "null", "is null; every row needs a text there"
    if not isinstance(text, str):
        kind = type(text).__name__
        return "wrong type", f"is a {kind}, not a text: {excerpt(text)}"
    if not text.strip():
        return "empty text", f"is empty or only white space: {excerpt(text)}"
    if found := _SURROGATE.search(text):
        where = f"{found.group()!a} at character {found.start()}"
        return "lone surrogate", (
            f"holds the lone surrogate {where}, which is no character; "
            "write the text again from its source"
        )
    if "\0" in text:
        where = text.index("\0")
        return "NUL", f"holds a NUL at character {where}; remove it"
    if len(text) > max_characters:
        return "too long", (
            f"has {len(text):,} characters, max_characters is {max_characters:,}; "
            "cut the text or raise `max_characters`"
        )
    return None


class Checker:
    """Checks the rows of one source against its columns."""

    def __init__(self, columns: ColumnsConfig, domain: str | None, max_characters: int):
        self.place = ""
        """Place of the last row."""
        self.columns = columns
        self.domain = domain or "default"
        self.max_characters = max_characters
        self._has_negatives = False
        self._texts_of_ids: dict[tuple[str, str], tuple[bytes, str]] = {}

    def check(self, row: Row) -> Pair | list[Problem]:
        """Returns the row as a pair, or all of its problems."""
        self.place = row.place
        if not isinstance(row.value, Mapping):
            detail = f"is no object with named fields: {excerpt(row.value)}"
            return [Problem(row.place, "not an object", detail)]
        problems: list[Problem] = []
        query = self._text(row, "query", problems)
        document = self._text(row, "document", problems)
        negatives = self._negatives(row, problems)
        domain = self._domain(row, problems)
        query_id = self._id(row, "query", problems)
        document_id = self._id(row, "document", problems)
        if not problems:
            self._same_text(row, "query", query_id, query, problems)
            self._same_text(row, "document", document_id, document, problems)
        return problems or Pair(
            query, document, negatives, domain, query_id, document_id
        )

    def unknown_negatives(self) -> list[Problem]:
        """A problem if no row had the field of the negatives."""
        name = self.columns.negatives
        if name is None or self._has_negatives:
            return []
        detail = (
            f"no row has the field `{name}`; name the right one in "
            "`columns.negatives`, or leave it out"
        )
        return [Problem(self.place, "missing column", detail, fatal=True)]

    def _field(self, row: Row, name: str, problems: list[Problem]) -> Any:
        try:
            return lookup(row.value, name)
        except KeyError:
            names = ", ".join(f"`{n}`" for n in row.value) or "none"
            detail = (
                f"no field `{name}`; the row's fields: {names}. Name the right one in "
                "`columns`"
            )
            problems.append(Problem(row.place, "missing field", detail))
            return _MISSING

    def _text(self, row: Row, column: str, problems: list[Problem]) -> str:
        name = getattr(self.columns, column)
        value = self._field(row, name, problems)
        if value is _MISSING:
            return ""
        if found := text_problem(value, self.max_characters):
            kind, detail = found
            problems.append(Problem(row.place, kind, f"field `{name}` {detail}"))
        return value

    def _negatives(self, row: Row, problems: list[Problem]) -> tuple[str, ...]:
        name = self.columns.negatives
        if name is None:
            return ()
        try:
            value = lookup(row.value, name)
        except KeyError:
            return ()
        self._has_negatives = True
        if value is None or value == "":  # an empty cell of a .csv
            return ()
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            detail = (
                f"field `{name}` is {excerpt(value)}; hard negatives are a text or a "
                'list of texts, e.g. ["…", "…"], null or missing where a row has none'
            )
            problems.append(Problem(row.place, "negatives", detail))
            return ()
        for number, text in enumerate(value):
            if found := text_problem(text, self.max_characters):
                detail = f"field `{name}`, number {number}, {found[1]}"
                problems.append(Problem(row.place, "negatives", detail))
        return tuple(value)

    def _domain(self, row: Row, problems: list[Problem]) -> str:
        name = self.columns.domain
        if name is None:
            return self.domain
        value = self._field(row, name, problems)
        if value is not _MISSING and (found := text_problem(value, _MAX_NAME)):
            problems.append(Problem(row.place, "domain", f"field `{name}` {found[1]}"))
        return value

    def _id(self, row: Row, side: str, problems: list[Problem]) -> str | None:
        name = getattr(self.columns, f"{side}_id")
        value = None if name is None else self._field(row, name, problems)
        if name is None or value is _MISSING:
            return None
        text = str(value) if type(value) is int else value
        if found := text_problem(text, _MAX_NAME):
            detail = f"field `{name}` {found[1]}; ids are texts or integers"
            problems.append(Problem(row.place, "id", detail))
        return text

    def _same_text(
        self, row: Row, side: str, id: str | None, text: str, problems: list[Problem]
    ) -> None:
        if id is None:
            return
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        first, place = self._texts_of_ids.setdefault((side, id), (digest, row.place))
        if first != digest:
            detail = (
                f"{side} id {id!r} has another text than at {place}: {excerpt(text)}; "
                "give each text an id of its own"
            )
            problems.append(Problem(row.place, "conflicting id", detail))


class Report:
    """Collects problems: all of them in a file, the first ones for the message."""

    def __init__(self, file: Path | None = None):
        self.kinds: Counter[str] = Counter()
        self.bad_rows = 0
        self.fatal = False
        self.shown: list[str] = []
        self.file = file

    def add(self, problems: list[Problem]) -> None:
        """Adds the problems of one row."""
        self.bad_rows += 1
        for problem in problems:
            self.kinds[problem.kind] += 1
            self.fatal |= problem.fatal
            if len(self.shown) < SHOWN:
                self.shown.append(f"{problem.place}: {problem.detail}")
        if self.file is not None:
            lines = [
                json.dumps({"place": p.place, "kind": p.kind, "detail": p.detail})
                for p in problems
            ]
            with open(self.file, "a", encoding="utf-8") as stream:
                stream.write("\n".join(lines) + "\n")

    def stop(self, on_invalid: str, advice: str = _ADVICE) -> None:
        """Raises ValueError if the problems must stop the run.

        The message ends with `advice`, unless fixing rows cannot solve a problem.
        """
        if not (self.fatal or (self.bad_rows and on_invalid == "error")):
            return
        total = sum(self.kinds.values())
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in self.kinds.most_common())
        lines = [f"{total:,} problems in the data ({kinds}):", *self.shown]
        if total > len(self.shown):
            where = f"; all are in {self.file}" if self.file else ""
            lines.append(f"… and {total - len(self.shown):,} more{where}")
        if not self.fatal:
            lines.append(advice)
        raise ValueError("\n".join(lines))


def checked(
    reading: Reading, domain: str | None, config: DataConfig, report: Report
) -> Iterator[Pair]:
    """Yields the valid rows of a source; invalid ones go to the report.

    A damaged file (truncated gzip, unreadable Parquet), a source without rows and a
    column that no row has are fatal: by skipping them, an unknown amount would be lost.
    """
    if domain is not None and reading.columns.domain is not None:
        raise ValueError(
            f"a source has both `domain: {domain}` and "
            f"`columns.domain: {reading.columns.domain}`; keep one of them."
        )
    checker = Checker(reading.columns, domain, config.max_characters)
    for row in reading.rows:
        found = [row] if isinstance(row, Problem) else checker.check(row)
        if isinstance(found, Pair):
            yield found
        else:
            report.add(found)
    if checker.place and (unknown := checker.unknown_negatives()):
        report.add(unknown)
