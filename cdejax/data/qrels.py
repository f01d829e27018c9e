"""Relevance judgments (qrels) from text files, in BEIR or TREC format."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from pathlib import Path
from typing import NamedTuple

from cdejax.data.rows import Problem, excerpt

SUFFIXES = (".tsv", ".txt", ".qrels", ".trec")
"""Suffixes of qrels files."""
_NAMES = ("query-id", "corpus-id", "score")
_BEIR, _TREC = (0, 1, 2), (0, 2, 3)
"""Positions of query id, document id and grade among three and among four fields."""
_GRADE = re.compile(r"[+-]?[0-9]+(\.0*)?")
_MOST = 2**31 - 1
"""Largest grade: evaluation uses 32-bit integers."""
_NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_BLANKS = re.compile(r"[ \t]+")


class Judgment(NamedTuple):
    """A line of qrels."""

    place: str
    query_id: str
    document_id: str
    grade: int


def qrels_file(folder: Path, split: str) -> Path:
    """The file of a split in a BEIR folder.

    Raises:
      ValueError: there is none, or more than one.
    """
    place = folder / "qrels"
    found = [
        place / f"{split}{s}" for s in SUFFIXES if (place / f"{split}{s}").is_file()
    ]
    if not found:
        files = sorted(p for p in place.glob("*") if p.suffix in SUFFIXES)
        splits = ", ".join(dict.fromkeys(p.stem for p in files)) or "none"
        raise ValueError(
            f"{place / split}.tsv: no such file; splits there: {splits}. "
            f"Name one as {folder}:SPLIT."
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{place}: {names} are all of split {split!r}; keep one.")
    return found[0]


def read_judgments(
    file: Path, queries: Container[str], documents: Container[str]
) -> Iterator[Judgment | Problem]:
    """The judgments of a file, each pair of ids once.

    A line holds query id, document id and grade, separated by tabs or blanks; in TREC
    format an unused fourth field follows the query id. The first line may be a header:
    one with the names `query-id`, `corpus-id` and `score` determines the columns. Any
    other first line is a header only if its last field is not a number and no field is
    a known id. A grade is an integer, which may be written as `1.0`.

    Args:
      file: UTF-8 text.
      queries: the known query ids.
      documents: the known document ids.

    Yields:
      Judgments, and problems for lines that are invalid or contradict an earlier line.
    """
    found: dict[tuple[str, str], Judgment] = {}
    named: list[str] = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        place = f"{file}:{number}"
        try:
            fields = _fields(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            detail = f"not UTF-8 ({error.reason}); convert the file to UTF-8"
            yield Problem(place, "wrong encoding", detail)
            continue
        if number == 1 and _is_header(fields, queries, documents):
            named = [field.lower().replace("_", "-") for field in fields]
        elif fields:
            read = _judgment(place, fields, _places(fields, named))
            read = read if isinstance(read, Problem) else _new(read, found)
            if read is not None:
                yield read


def _fields(line: str) -> list[str]:
    """A line's fields, separated by tabs if it has any, otherwise by blanks."""
    line = line.rstrip("\r\n\t ")
    if "\t" in line:
        return [_unquoted(field) for field in line.split("\t")]
    return _BLANKS.split(line.strip()) if line.strip() else []


def _unquoted(field: str) -> str:
    """A field of a TSV file without any surrounding quotes."""
    quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1].replace('""', '"') if quoted else field


def _is_header(
    fields: list[str], queries: Container[str], documents: Container[str]
) -> bool:
    if not fields or _NUMBER.fullmatch(fields[-1]):
        return False
    return not any(field in queries or field in documents for field in fields)


def _places(fields: list[str], named: list[str]) -> tuple[int, ...] | None:
    """Positions of query id, document id and grade; None if they are unclear."""
    if set(_NAMES) <= set(named):
        same = len(fields) == len(named)
        return tuple(named.index(name) for name in _NAMES) if same else None
    return {3: _BEIR, 4: _TREC}.get(len(fields))


def _judgment(
    place: str, fields: list[str], places: tuple[int, ...] | None
) -> Judgment | Problem:
    query, document, grade = (fields[i] for i in places) if places else ("", "", "")
    if not _GRADE.fullmatch(grade.strip()):
        detail = (
            "needs query id, document id and integer grade (or TREC's four fields): "
            f"{excerpt(' '.join(fields))}"
        )
        return Problem(place, "judgment", detail)
    if abs(float(grade)) > _MOST:
        detail = f"grade {excerpt(grade)} is beyond {_MOST:,}, the most that is read"
        return Problem(place, "judgment", detail)
    return Judgment(place, query, document, int(float(grade)))


def _new(
    read: Judgment, found: dict[tuple[str, str], Judgment]
) -> Judgment | Problem | None:
    """The judgment if new, None for a repetition, a problem for a contradiction."""
    first = found.setdefault((read.query_id, read.document_id), read)
    if first is read:
        return read
    if first.grade == read.grade:
        return None
    detail = (
        f"query id {read.query_id!r}, document id {read.document_id!r}: grade "
        f"{read.grade}, but {first.grade} at {first.place}; keep one of the two lines"
    )
    return Problem(read.place, "conflicting judgment", detail)
