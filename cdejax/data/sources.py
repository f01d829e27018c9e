"""Where rows come from: files, BEIR folders, dataset libraries, Python packages."""

from __future__ import annotations

import dataclasses
import glob
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdejax.artifacts import hash_files, jsonable
from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.rows import Problem, Reading, Row, excerpt

KINDS = (
    "`python-packages`, a .jsonl(.gz) or .parquet file or a glob of them, a BEIR "
    "folder[:SPLIT], `hf:NAME[/CONFIG][:SPLIT]`, `hf:FOLDER[:SPLIT]` (written by "
    "save_to_disk), `tfds:NAME[/CONFIG][:SPLIT]` or `tfds:FOLDER[:SPLIT]`"
)
_JSON_LINES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_PARQUET = (".parquet", ".pq")


def read_source(source: SourceConfig) -> Reading:
    """Opens a source.

    JSON lines are read one by one (lines of white space are no rows); Parquet, Hugging
    Face and TFDS rows carry their number from 1.

    Raises:
      ValueError: there is no such source, or it lacks a column of `source.columns`.
    """
    path = source.path
    if path == "python-packages":
        from cdejax.data.packages import read_packages

        return _fixed(source, read_packages(source.packages))
    if path.startswith("hf:"):
        return _read_hub(source)
    if path.startswith("tfds:"):
        from cdejax.data.tfds import read_tfds

        return read_tfds(path, source.columns)
    if folder := beir_folder(path):
        from cdejax.data.beir import read_beir_pairs

        return _fixed(source, read_beir_pairs(*folder))
    files = source_files(path)
    rows = (row for file in files for row in _read_file(file, source.columns))
    return Reading(rows, source.columns, _total(files))


def data_spec(config: DataConfig) -> dict[str, Any]:
    """What decides the rows: settings and contents of all sources, not licences."""
    settings = jsonable(config)
    for source in settings["sources"]:
        source.pop("license", None)
    contents = [source_fingerprint(source) for source in config.sources]
    return {"data": settings, "sources": contents}


def source_fingerprint(source: SourceConfig) -> Any:
    """What decides a source's content, beside its configuration: hashes or versions."""
    path = source.path
    if path == "python-packages":
        from cdejax.data.packages import package_versions

        return package_versions(source.packages)
    if path.startswith("hf:"):
        return open_hub(path)._fingerprint
    if path.startswith("tfds:"):
        from cdejax.data.tfds import tfds_fingerprint

        return tfds_fingerprint(path)
    if folder := beir_folder(path):
        return hash_files(folder[0])
    return hash_files(*source_files(path))


def top_columns(columns: ColumnsConfig, available: list[str], where: str) -> list[str]:
    """The columns of a table that hold the named fields, dotted names included.

    Raises:
      ValueError: a column is missing; the message names those that exist.
    """
    wanted = [name for name in dataclasses.astuple(columns) if name is not None]
    if twice := sorted({f"`{a}`" for a in available if available.count(a) > 1}):
        raise ValueError(
            f"{where}: several columns are called {', '.join(twice)}; rename them."
        )
    tops = {n: n if n in available else n.split(".")[0] for n in wanted}
    missing = sorted(name for name, top in tops.items() if top not in available)
    if missing:
        raise ValueError(
            f"{where}: no column {', '.join(f'`{m}`' for m in missing)}; "
            f"its columns: {', '.join(f'`{a}`' for a in available)}. "
            "Name the right ones in `columns`."
        )
    return list(dict.fromkeys(tops.values()))


def beir_folder(path: str, default: str = "train") -> tuple[Path, str] | None:
    """Splits FOLDER[:SPLIT]; None if there is no such folder."""
    if Path(path).is_dir():
        return Path(path), default
    folder, _, split = path.rpartition(":")
    return (Path(folder), split) if folder and Path(folder).is_dir() else None


def source_files(path: str) -> list[Path]:
    """The file called `path`, or those that match it as a pattern, sorted by name.

    Raises:
      ValueError: there is none, or one has a name of unknown kind.
    """
    files = [Path(path)] if Path(path).is_file() else sorted(map(Path, glob.glob(path)))
    files = [file for file in files if file.is_file()]
    if not files:
        raise ValueError(f"source {path!r}: no such file. A source is {KINDS}.")
    for file in files:
        if not file.name.endswith(_JSON_LINES + _PARQUET):
            raise ValueError(
                f"source {str(file)!r}: unknown kind. A source is {KINDS}."
            )
    return files


def _fixed(source: SourceConfig, reading: Reading) -> Reading:
    """A source with a layout of its own: `columns` do not apply, `domain` does."""
    if source.columns != ColumnsConfig():
        raise ValueError(
            f"source {source.path!r} has a fixed layout; leave out its `columns`."
        )
    if source.domain is not None:
        reading.columns = dataclasses.replace(reading.columns, domain=None)
    return reading


def _total(files: list[Path]) -> int | None:
    if not all(file.name.endswith(_PARQUET) for file in files):
        return None
    return sum(_parquet(file).metadata.num_rows for file in files)


def _read_file(file: Path, columns: ColumnsConfig) -> Iterator[Row | Problem]:
    """The rows of one file; an empty file is a problem of its own."""
    if file.name.endswith(_PARQUET):
        rows = _read_parquet(file, columns)
    else:
        rows = read_json_lines(file)
    number = 0
    for number, row in enumerate(rows, 1):  # noqa: B007 (used after the loop)
        yield row
    if number == 0:
        yield no_rows(str(file))


def no_rows(place: str) -> Problem:
    """The problem of a source without rows, which stops the run."""
    detail = "holds no rows; fill it or take it out of `sources`"
    return Problem(place, "no rows", detail, fatal=True)


def read_json_lines(file: Path) -> Iterator[Row | Problem]:
    """The rows of a .jsonl file, plain or .gz; lines of white space are none."""
    for number, line in _read_lines(file):
        if isinstance(line, Problem):
            yield line
        elif line.strip():
            yield _parse(f"{file}:{number}", line)


def _read_lines(file: Path) -> Iterator[tuple[int, bytes | Problem]]:
    """Numbered lines of a plain or gzip file; a damaged gzip ends with a problem."""
    opened = gzip.open if file.name.endswith(".gz") else open
    number = 0
    try:
        with opened(file, "rb") as stream:
            for number, line in enumerate(stream, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        detail = (
            f"damaged gzip after line {number} ({error}); "
            "the file was cut short or changed: copy or write it again"
        )
        yield number, Problem(f"{file}:{number}", "damaged file", detail, fatal=True)


def _parse(place: str, line: bytes) -> Row | Problem:
    try:
        return Row(place, json.loads(line.decode(), object_pairs_hook=_fields))
    except UnicodeDecodeError as error:
        byte = f"{line[error.start : error.start + 1]!r} at byte {error.start}"
        detail = f"not UTF-8 ({byte} of the line); convert the file to UTF-8"
        return Problem(place, "wrong encoding", detail)
    except ValueError as error:
        detail = (
            f"not JSON ({error}): {excerpt(line.decode())}; write one object a line"
        )
        return Problem(place, "not JSON", detail)
    except RecursionError:
        return Problem(place, "not JSON", "nested too deeply to be read")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError where a name stands twice, as only one could count."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {excerpt(twice)} stands twice in one object")
    return fields


def _parquet(file: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"{file}: no readable Parquet ({error}); copy or write it again."
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
        detail = f"damaged Parquet after row {number} ({error}); write it again"
        yield Problem(str(file), "damaged file", detail, fatal=True)


def _table_row(place: str, batch: Any, row: int) -> Row | Problem:
    try:
        return Row(
            place, {name: batch[name][row].as_py() for name in batch.column_names}
        )
    except UnicodeDecodeError as error:
        detail = f"not UTF-8 ({error}); write the texts again as UTF-8"
        return Problem(place, "wrong encoding", detail)


def open_hub(path: str) -> Any:
    """Opens `hf:NAME[/CONFIG][:SPLIT]` or `hf:FOLDER[:SPLIT]` (default split `train`).

    A NAME is OWNER/DATASET (or a lone DATASET), so a third part is the configuration.
    """
    import datasets

    name, _, split = path.removeprefix("hf:").partition(":")
    split = split or "train"
    owner_name, config = "/".join(name.split("/")[:2]), name.split("/")[2:]
    try:
        if not Path(name).is_dir():
            dataset = datasets.load_dataset(owner_name, *config, split=split)
        else:
            dataset = datasets.load_from_disk(name)
            if isinstance(dataset, datasets.DatasetDict):
                dataset = dataset[split]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"source {path!r}: cannot open it ({type(error).__name__}: {error}). "
            "Check name, configuration and split."
        ) from None
    return dataset


def _read_hub(source: SourceConfig) -> Reading:
    dataset = open_hub(source.path)
    names = top_columns(source.columns, dataset.column_names, source.path)
    rows = _number_rows(source.path, dataset.select_columns(names))
    return Reading(rows, source.columns, len(dataset))


def _number_rows(path: str, rows: Any) -> Iterator[Row | Problem]:
    number = 0
    for number, row in enumerate(rows, 1):
        yield Row(f"{path} row {number}", row)
    if number == 0:
        yield no_rows(path)
