"""Files of rows: JSON lines, CSV, TSV and Parquet, plain or gzip.

Compression is detected by a file's content, its format by its name. Lines are read one
by one and their length is bounded, so a file may have any size.
"""

from __future__ import annotations

import csv
import functools
import gzip
import itertools
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from cdejax.config import ColumnsConfig
from cdejax.data.columns import missing_columns, reaches, required, top_columns
from cdejax.data.rows import Problem, Row, excerpt
from cdejax.storage.guarded import parse_json

JSON_LINES = (".jsonl", ".ndjson", ".json")
DELIMITED = (".csv", ".tsv")
PARQUET = (".parquet", ".pq")
MAX_LINE = 1 << 25
"""Maximum bytes of a line: 32 MiB, many times the longest text accepted."""
PEEK = 100
"""Number of rows at the start of a file, among which each column must occur."""
_GZIP = b"\x1f\x8b"


def suffix(file: str | Path) -> str:
    """The suffix of a name that identifies the format: `.jsonl` of `a.jsonl.gz`."""
    return Path(str(file).removesuffix(".gz")).suffix


def is_row_file(file: str | Path) -> bool:
    """Whether `read_rows` reads files with this name."""
    return suffix(file) in JSON_LINES + DELIMITED + PARQUET


def read_rows(file: Path, columns: ColumnsConfig) -> Iterator[Row | Problem]:
    """The rows of one file.

    Raises:
      ValueError: a table lacks a column of `columns`. JSON lines have no common
        columns: if none of the first lines has a column, a single problem is yielded
        instead.
    """
    if suffix(file) in PARQUET:
        return _read_parquet(file, columns)
    if suffix(file) in DELIMITED:
        return _read_delimited(file, columns)
    return _with_columns(read_json_lines(file), file, columns)


def parquet_rows(files: list[Path]) -> int | None:
    """Number of rows of all files, if known without reading them."""
    if not all(suffix(file) in PARQUET for file in files):
        return None
    return sum(_parquet(file).metadata.num_rows for file in files)


def read_json_lines(file: Path) -> Iterator[Row | Problem]:
    """The rows of a .jsonl file, plain or gzip; blank lines are skipped."""
    first = True
    for number, line in read_lines(file):
        place = f"{file}:{number}"
        if isinstance(line, Problem):
            yield line
        elif first and line.lstrip().startswith(b"["):
            detail = "the file is a JSON array; write one object a line"
            yield Problem(place, "not JSON lines", detail, fatal=True)
            return
        elif line.strip():
            first = False
            yield _parse(place, line)


def read_lines(file: Path) -> Iterator[tuple[int, bytes | Problem]]:
    """Numbered lines of a plain or gzip file, without a byte order mark.

    Damaged gzip, UTF-16 or a line of more than `MAX_LINE` bytes ends the file with a
    fatal problem, since the rest of the file is unknown.
    """
    number = 0
    try:
        with _opened(file) as stream:
            lines = iter(functools.partial(stream.readline, MAX_LINE + 1), b"")
            for number, line in enumerate(lines, 1):
                place = f"{file}:{number}"
                if len(line) > MAX_LINE:
                    detail = (
                        f"a line of more than {MAX_LINE >> 20} MiB; write one row a "
                        "line, and cut its texts"
                    )
                    yield number, Problem(place, "too long", detail, fatal=True)
                    return
                if number == 1 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                    detail = "the file is UTF-16; convert it to UTF-8"
                    yield number, Problem(place, "wrong encoding", detail, fatal=True)
                    return
                yield number, line.removeprefix(BOM_UTF8) if number == 1 else line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        detail = (
            f"damaged gzip after line {number} ({error}); "
            "the file was cut short or changed: copy or write it again"
        )
        yield number, Problem(f"{file}:{number}", "damaged file", detail, fatal=True)


def _opened(file: Path) -> IO[bytes]:
    with open(file, "rb") as stream:
        compressed = stream.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(file)) if compressed else open(file, "rb")


def _parse(place: str, line: bytes) -> Row | Problem:
    try:
        return Row(place, parse_json(line.decode(), _fields))
    except UnicodeDecodeError as error:
        return Problem(place, "wrong encoding", _encoding(line, error))
    except ValueError as error:
        detail = (
            f"not JSON ({error}): {excerpt(line.decode())}; write one object a line"
        )
        return Problem(place, "not JSON", detail)


def _encoding(line: bytes, error: UnicodeDecodeError) -> str:
    byte = f"{line[error.start : error.start + 1]!r} at byte {error.start}"
    return f"not UTF-8 ({byte} of the line); convert the file to UTF-8"


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a repeated name, of which only one could count."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {excerpt(twice)} appears twice in one object")
    return fields


def _with_columns(
    rows: Iterator[Row | Problem], file: Path, columns: ColumnsConfig
) -> Iterator[Row | Problem]:
    """The rows, or one problem if none of the first rows has some column."""
    first = list(itertools.islice(rows, PEEK))
    values = [row.value for row in first if isinstance(row, Row)]
    objects = [value for value in values if isinstance(value, Mapping)]
    names = required(columns)
    missing = [n for n in names if not any(reaches(row, n) for row in objects)]
    if objects and missing:
        available = list(dict.fromkeys(name for row in objects for name in row))
        detail = missing_columns(missing, available)
        count = f"the first {len(objects)} rows have " if len(objects) > 1 else ""
        yield Problem(str(file), "missing column", f"{count}{detail}", fatal=True)
        return
    yield from first
    yield from rows


class _Text:
    """Decoded lines of a file for `csv`, and the problems found in them."""

    def __init__(self, file: Path):
        self._lines = read_lines(file)
        self.number = 0
        """Number of the last line."""
        self.encoding: str | None = None
        """The problem of a line that is not UTF-8."""
        self.problem: Problem | None = None
        """The problem that made reading stop early."""

    def __iter__(self) -> _Text:
        return self

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        if isinstance(line, Problem):
            self.problem = line
            raise StopIteration
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            self.encoding = _encoding(line, error)
            return line.decode(errors="replace")


def _read_delimited(file: Path, columns: ColumnsConfig) -> Iterator[Row | Problem]:
    """Rows of a .csv or .tsv file whose first line names the columns.

    Quoting follows RFC 4180: `"` around a field, doubled inside. The delimiter of a
    .csv file is the most frequent one of comma, semicolon and tab in its first line.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # process-wide
    text = _Text(file)
    head = next(text, None)
    start = 1
    try:
        if head is not None:
            delimiter = "\t" if suffix(file) == ".tsv" else max(",;\t", key=head.count)
            lines = itertools.chain([head], text)
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            names = [name.strip() for name in next(reader)]
            where = f"{file}: its first line must name the columns"
            top_columns(columns, names, where)
            start = text.number + 1
            for fields in reader:
                if fields:  # not a blank line
                    yield _delimited_row(f"{file}:{start}", names, fields, text)
                start, text.encoding = text.number + 1, None
        if text.problem is not None:
            yield text.problem
    except csv.Error as error:
        detail = (
            f"the lines do not fit the format ({error}); end them by a newline, and "
            'put `"` around a field that holds quotes, doubling those inside'
        )
        yield text.problem or Problem(
            f"{file}:{start}", "damaged file", detail, fatal=True
        )


def _delimited_row(
    place: str, names: list[str], fields: list[str], text: _Text
) -> Row | Problem:
    if text.encoding is not None:
        return Problem(place, "wrong encoding", text.encoding)
    if len(fields) != len(names):
        detail = (
            f"{len(fields)} fields, but the first line names {len(names)} columns: "
            f"{excerpt(fields)}"
        )
        return Problem(place, "fields", detail)
    return Row(place, dict(zip(names, fields, strict=True)))


def _parquet(file: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{file}: no readable Parquet ({_first_line(error)}); copy or write it "
            "again."
        ) from None


def _read_parquet(file: Path, columns: ColumnsConfig) -> Iterator[Row | Problem]:
    import pyarrow

    table = _parquet(file)
    names = top_columns(columns, table.schema_arrow.names, str(file))
    number = 0
    try:
        for batch in table.iter_batches(1024, columns=names):
            for row in range(batch.num_rows):
                number += 1
                yield _table_row(f"{file}:row {number}", batch, row)
    except (pyarrow.ArrowException, OSError) as error:
        detail = (
            f"damaged Parquet after row {number} ({_first_line(error)}); write it again"
        )
        yield Problem(str(file), "damaged file", detail, fatal=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _table_row(place: str, batch: Any, row: int) -> Row | Problem:
    try:
        return Row(
            place, {name: batch[name][row].as_py() for name in batch.column_names}
        )
    except UnicodeDecodeError as error:
        detail = f"not UTF-8 ({error}); write the texts again as UTF-8"
        return Problem(place, "wrong encoding", detail)
    except (ValueError, OverflowError) as error:  # dates outside Python's range
        return Problem(place, "wrong type", f"a value cannot be read ({error})")
