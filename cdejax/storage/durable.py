"""Atomic writes: a kill, a full disk or a power cut leaves the old or the new files.

A file is written under a temporary name, flushed to disk and renamed. Files that belong
together are first written into a temporary folder: once that is complete, `recover`
moves them into place, at once or, after a kill, at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

FULL = "No space left on device"
_SHORT = re.compile(r"[0-9]+ requested and [0-9]+ written")
"""NumPy's message for a full disk."""
_READY = ".ready"
"""Folder of complete files that have not all been moved into place."""
_NEW = ".new-"
"""Prefix of folders that are being written."""
_GONE = ".gone"
"""File in `_READY` with the names of files that the new ones replace, one per line."""


def reason(error: OSError) -> str:
    """The operating system's reason, also if a library words it differently."""
    said = str(error)
    if os.strerror(errno.ENOSPC) in said or _SHORT.search(said):
        return FULL
    return error.strerror or said.splitlines()[0]


def sync(path: str | Path) -> None:
    """Flushes a file's content, or a folder's names, to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(folder: str | Path) -> None:
    """Flushes a folder tree to disk: files first, then their names."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(place, name))
        sync(place)


def sync_folders(folder: str | Path) -> None:
    """Flushes the names in a folder tree to disk, but not the files' content.

    Other processes may create and remove files at the same time.
    """
    for place, _, _ in os.walk(folder, topdown=False):
        sync(place)


def replace(new: str | Path, path: str | Path) -> None:
    """Renames a file or folder; the rename survives a power cut."""
    os.replace(new, path)
    sync(Path(path).absolute().parent)


def write_file(path: str | Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes a file atomically.

    Args:
      path: path of the file; an old one is kept until the new one is on disk.
      write: writes the content to the stream that it is given.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_together(
    folder: str | Path, write: Callable[[Path], Any], gone: Iterable[str] = ()
) -> None:
    """Writes files of a folder atomically, all or none; its other files are kept.

    Args:
      folder: the folder, created if missing.
      write: writes the files into the folder that it is given.
      gone: names of older files that the new ones replace.
    """
    folder = Path(folder)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        recover(folder)
        for left in folder.glob(f"{_NEW}*"):
            shutil.rmtree(left, ignore_errors=True)
        with _scratch(folder) as new:
            write(new)
            old = [name for name in gone if not (new / name).exists()]
            (new / _GONE).write_text("\n".join(old), encoding="utf-8")
            sync_tree(new)
            replace(new, folder / _READY)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):  # another process has written into it
                folder.rmdir()
        raise
    recover(folder)


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder, removed at the end unless it was renamed."""
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=folder))
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def recover(folder: str | Path) -> None:
    """Moves files into place that a killed `write_together` had completed.

    Call it before such files are read.
    """
    folder = Path(folder)
    ready = folder / _READY
    if not ready.is_dir():
        return
    new = [path for path in ready.rglob("*") if path.is_file()]
    for path in new:
        if path.name == _GONE:
            for name in path.read_text(encoding="utf-8").splitlines():
                (folder / name).unlink(missing_ok=True)
            continue
        place = folder / path.relative_to(ready)
        place.parent.mkdir(exist_ok=True, parents=True)
        replace(path, place)
    shutil.rmtree(ready)


def is_scratch(path: Path) -> bool:
    """Whether a killed `write_together` left this file or folder."""
    return path.name == _READY or path.name.startswith(_NEW)
