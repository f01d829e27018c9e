"""An exported folder appears whole or not at all, and is never written over."""

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
"""What may change in a model card without making another model."""


def publish(
    folder: str | Path,
    kind: str,
    metadata: Mapping[str, Any],
    write: Callable[[Path], None],
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Writes an export under a temporary name and moves it to its place.

    Where the folder holds this same export, only the model card is written again, if
    it would say something else and nobody has edited it.

    Args:
      folder: it must not exist, be empty, or hold this same export.
      kind: what is exported, for the marker.
      metadata: what the model card was told, JSON values.
      write: writes all files into the folder that it is given.
      check: called with the complete folder before it appears, to raise where it is no
        good; not where the folder is there and only its card is written again.

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
    """Removes what a killed process left of a folder, but the lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _write_marker(
    partial: Path, kind: str, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes the marker of the complete folder; the marker."""
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
    """Hash of each file but marker and lock, by its name in the folder."""
    return {
        path.relative_to(folder).as_posix(): hash_files(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", MARKER)
    }


def move_into_place(partial: Path, folder: Path) -> None:
    """Gives a complete folder its name; locked until now, no other run clears it."""
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
    """Names of files that are missing, and of a model card that says less.

    What else differs was edited, or damaged: that is for its owner to decide.
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
    """Puts new files into an export, all or none of them."""

    def write(new: Path) -> None:
        for name in names:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(partial / name, new / name)

    if names:
        durable.write_together(folder, write)
