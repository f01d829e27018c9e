"""Where rows come from: files, BEIR folders, dataset libraries, Python packages."""

from __future__ import annotations

import dataclasses
import glob
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.beir import beir_folder, check_folder, read_beir_pairs
from cdejax.data.columns import top_columns
from cdejax.data.files import is_row_file, parquet_rows, read_rows
from cdejax.data.packages import package_versions, read_packages
from cdejax.data.rows import Problem, Reading, Row, no_rows
from cdejax.data.tfds import read_tfds, tfds_fingerprint
from cdejax.folders.paths import hub_hint
from cdejax.storage.artifacts import hash_files, jsonable

KINDS = (
    "`python-packages`, a .jsonl, .csv, .tsv or .parquet file or a glob of them, a "
    "BEIR folder[:SPLIT], `hf:NAME[/CONFIG][:SPLIT]`, `hf:FOLDER[:SPLIT]` (written by "
    "save_to_disk), `tfds:NAME[/CONFIG][:SPLIT]` or `tfds:FOLDER[:SPLIT]`"
)
_log = logging.getLogger(__name__)


def read_source(source: SourceConfig) -> Reading:
    """Opens a source.

    Lines are read one by one (those of white space are no rows); Parquet, Hugging Face
    and TFDS rows carry their number from 1. A file without rows among others is named
    in the log and in `facts`.

    Raises:
      ValueError: there is no such source, or it lacks a column of `source.columns`.
    """
    path = source.path
    if path == "python-packages":
        return _fixed(source, read_packages(source.packages))
    if path.startswith("hf:"):
        return _read_hub(source)
    if path.startswith("tfds:"):
        return read_tfds(path, source.columns)
    if folder := beir_folder(path):
        return _fixed(source, read_beir_pairs(*folder))
    files, facts = source_files(path), {}
    rows = _read_files(path, files, source.columns, facts)
    return Reading(rows, source.columns, parquet_rows(files), facts)


def check_source(source: SourceConfig) -> None:
    """Looks at a source before any work: is it there, and has it the columns?

    Of files, the first rows of the first are read, of a BEIR folder the first of its
    corpus and queries; what comes by a library is only opened.

    Raises:
      ValueError: as `read_source`; or the first rows lack a column.
    """
    if folder := beir_folder(source.path):
        return check_folder(*folder)
    reading = read_source(source)
    if source.path.startswith(("hf:", "tfds:")) or source.path == "python-packages":
        return
    first = next(reading.rows, None)
    if isinstance(first, Problem) and first.fatal:
        raise ValueError(f"{first.place}: {first.detail}")


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
        return package_versions(source.packages)
    if path.startswith("hf:"):
        return open_hub(path)._fingerprint
    if path.startswith("tfds:"):
        return tfds_fingerprint(path)
    if folder := beir_folder(path):
        return hash_files(folder[0])
    return hash_files(*source_files(path))


def source_files(path: str) -> list[Path]:
    """The file called `path`, or those that match it as a pattern, sorted by name.

    Raises:
      ValueError: there is none, or one has a name of unknown kind.
    """
    files = [Path(path)] if Path(path).is_file() else sorted(map(Path, glob.glob(path)))
    files = [file for file in files if file.is_file()]
    if not files:
        raise ValueError(
            f"source {path!r}: no such file{hub_hint(path)}. A source is {KINDS}."
        )
    for file in files:
        if not is_row_file(file):
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


def _read_files(
    path: str, files: list[Path], columns: ColumnsConfig, facts: dict[str, Any]
) -> Iterator[Row | Problem]:
    """The rows of all files; those without any are named in `facts`."""
    empty = []
    for file in files:
        rows = iter(read_rows(file, columns))
        if (first := next(rows, None)) is None:
            empty.append(str(file))
        else:
            yield first
            yield from rows
    if len(empty) == len(files):
        yield no_rows(empty[0] if len(empty) == 1 else path)
    elif empty:
        facts["empty_files"] = empty
        _log.warning("%s: files without rows: %s", path, ", ".join(empty))


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
