"""Reading of model folders, which records the files that are opened.

All code that reads a file of a model or tokenizer folder, or asks whether it exists,
does so through these functions. What is made from a folder depends on all files that
were opened, and on those that were missing: see `files_read`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from cdejax.storage import guarded
from cdejax.storage.hashing import Signature, file_hash, is_settled, signature

_record: ContextVar[Record | None] = ContextVar("record", default=None)


class Record:
    """Files and folders that were accessed, and the files that were opened."""

    def __init__(self) -> None:
        self._seen: dict[Path, Signature | None] = {}
        self._opened: set[Path] = set()

    def note(self, path: Path, opened: bool = False) -> None:
        """Records a path before it is accessed or opened."""
        if path not in self._seen:
            seen = signature(path)
            # A change too recent for the signature to show later ones counts as one.
            self._seen[path] = seen if is_settled(seen) else ()
        if opened:
            self._opened.add(path)

    def hashes(self, folder: Path) -> dict[str, str]:
        """Hashes of the opened files, by name in the folder."""
        names = {os.path.relpath(path, folder): path for path in self._opened}
        return {name: file_hash(names[name]) for name in sorted(names)}

    def is_current(self) -> bool:
        """Whether no file has changed, appeared or disappeared since."""
        return all(signature(path) == seen for path, seen in self._seen.items())


_known: dict[tuple[Callable[[Path], Any], Path], Record] = {}


@contextlib.contextmanager
def record_reads() -> Iterator[Record]:
    """Records what is read in the context."""
    record = Record()
    token = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(token)


def files_read(read: Callable[[Path], Any], folder: Path) -> dict[str, str]:
    """Hashes of the files that `read` opens, by name in the folder.

    `read` is called again only if a file that it accessed has changed.
    """
    record = _known.get((read, folder))
    if record is None or not record.is_current():
        with record_reads() as record:
            read(folder)
        _known[read, folder] = record
    return record.hashes(folder)


def _note(path: Path, opened: bool = False) -> Path:
    if (record := _record.get()) is not None:
        record.note(path, opened)
    return path


def opened(path: Path) -> Path:
    """Records a file that the caller opens by other means; returns its path."""
    return _note(path, opened=True)


def is_file(path: Path) -> bool:
    """Whether a file exists."""
    return _note(path).is_file()


def is_folder(path: Path) -> bool:
    """Whether a folder exists."""
    return _note(path).is_dir()


def list_files(folder: Path, pattern: str) -> list[Path]:
    """Paths directly in a folder whose names match a pattern, sorted."""
    return sorted(_note(folder).glob(pattern))


def read_text(path: Path) -> str:
    """Reads a text file; ValueError if it is not UTF-8."""
    return guarded.read_text(opened(path))


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; ValueError if it is missing or something else."""
    if not is_file(path):
        inside = [path.parent / "export", *path.parent.glob("*/export")]
        export = next((x for x in inside if (x / path.name).is_file()), None)
        hint = f"did you mean {export}?" if export else "is it a model folder?"
        raise ValueError(f"{path.parent}: no {path.name} there; {hint}")
    return guarded.read_json_object(opened(path))


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As `read_json`, but returns an empty object if there is no file."""
    return read_json(path) if is_file(path) else {}


def read_json_value(path: Path) -> Any:
    """Reads any JSON value; ValueError if the file is not JSON."""
    return guarded.read_json(opened(path))
