"""Publishes export folders atomically, without overwriting others."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata as packages
from pathlib import Path
from typing import Any

from cdejax.folders.marker import MARKER, read_marker
from cdejax.folders.paths import local_output
from cdejax.storage import digests, durable
from cdejax.storage.artifacts import (
    explain_os_error,
    fingerprint,
    hash_files,
    write_json,
)
from cdejax.storage.lock import lock_folder

_log = logging.getLogger(__name__)
CARD = "README.md"
_CARD_ONLY = ("recipe", "evaluation", "scores", "code")
"""Metadata of the model card that may change without making another model."""


def publish(
    folder: str | Path,
    kind: str,
    metadata: Mapping[str, Any],
    write: Callable[[Path], None],
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Writes an export under a temporary name and moves it into place.

    If the folder already holds the same export, only missing files and the model card
    are written, the card only if it differs and has not been edited.

    Args:
      folder: must not exist, be empty, or hold the same export.
      kind: kind of export, for the marker.
      metadata: metadata of the model card, as JSON values.
      write: writes all files into the folder that it is given.
      check: called with the complete folder before it is moved into place, to raise if
        it is faulty; not called if the folder already exists.

    Returns:
      The folder.

    Raises:
      ValueError: the folder holds something else or cannot be written.
    """
    folder = local_output(folder).absolute()
    durable.recover(folder)
    _check_place(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    with lock_folder(partial):
        try:
            clear_folder(partial)
            write(partial)
            marker = _write_marker(partial, kind, metadata)
            if folder.is_dir() and any(folder.iterdir()):
                _check_same(folder, marker["fingerprint"])
                _update_files(folder, partial, _files_to_update(folder, partial))
            else:
                if check is not None:
                    check(partial)
                move_into_place(partial, folder)
            return folder
        except OSError as error:
            raise ValueError(
                f"{partial}: writing the export failed: {explain_os_error(error)}"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _check_place(folder: Path) -> None:
    """Refuses a folder that must not be replaced."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; give another folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise ValueError(
            f"{folder}: is not empty and no export of cdejax; give another folder."
        )


def clear_folder(folder: Path) -> None:
    """Removes everything but the lock from a folder that a killed process left."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _write_marker(
    partial: Path, kind: str, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the marker of a complete folder and returns it."""
    content = _file_hashes(partial)
    card = content.pop(CARD)
    stable = {k: v for k, v in metadata.items() if k not in _CARD_ONLY}
    marker = {
        "kind": kind,
        "fingerprint": fingerprint([content, stable]),
        "version": packages.version("cdejax"),
        "card": card,
        "metadata": metadata,
        "digests": digests.table_of(partial, (partial / name for name in content)),
    }
    write_json(partial / MARKER, marker)
    return marker


def _file_hashes(folder: Path) -> dict[str, str]:
    """Hashes of all files but marker and lock, by name in the folder."""
    return {
        path.relative_to(folder).as_posix(): hash_files(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", MARKER)
    }


def move_into_place(partial: Path, folder: Path) -> None:
    """Renames a complete folder; its lock has kept other runs from clearing it."""
    durable.sync_tree(partial)
    durable.replace(partial, folder)
    (folder / ".lock").unlink()


def _check_same(folder: Path, key: str) -> None:
    found = read_marker(folder).get("fingerprint")
    if found != key:
        raise ValueError(
            f"{folder}: holds the export of another model or of other settings "
            f"(fingerprint {found}, this one is {key}). "
            "Give another folder, or move this one away."
        )


def _files_to_update(folder: Path, partial: Path) -> list[str]:
    """Names of files that are missing, and of the model card if it is outdated.

    Other files that differ were edited or damaged, so they are left to their owner.
    """
    content = _file_hashes(partial)
    card = content.pop(CARD)
    held = {name: hash_files(folder / name) for name in _existing(folder, content)}
    if changed := [name for name in held if held[name] != content[name]]:
        _log.warning(
            "%s: %s differs from what was exported and is left as it is; move the "
            "folder away to export it anew",
            *(folder, ", ".join(changed)),
        )
    names = [name for name in content if name not in held]
    there = hash_files(folder / CARD) if (folder / CARD).is_file() else None
    if there in (None, read_marker(folder).get("card")):
        return names if there == card else [*names, CARD, MARKER]
    if there != card:
        _log.info("%s: was edited and is left as it is", folder / CARD)
    return names


def _existing(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (folder / name).is_file()]


def _update_files(folder: Path, partial: Path, names: list[str]) -> None:
    """Writes new files into an export, all or none."""

    def write(new: Path) -> None:
        for name in names:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(partial / name, new / name)

    if names:
        durable.write_together(folder, write)
