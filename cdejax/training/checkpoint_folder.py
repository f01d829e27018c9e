"""The files of checkpoints: their numbers, digests, removal and damage."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from cdejax.runtime.processes import is_main, process, processes
from cdejax.storage import digests, durable

_log = logging.getLogger(__name__)
_TEMPORARY = ".orbax-checkpoint-tmp"
_DAMAGED, _OLD = ".damaged", ".old"
"""Suffixes of folders that no longer count as checkpoints."""


def saved_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, oldest first."""
    folders = (path for path in folder.glob("*") if path.is_dir())
    return sorted(int(path.name) for path in folders if path.name.isdigit())


class CheckpointFolder:
    """A folder whose subfolders are checkpoints, named after their steps.

    Args:
      folder: the folder; `create` makes it.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).resolve()

    def path(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return self.folder / str(step)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return saved_steps(self.folder)

    def create(self) -> None:
        """Makes the folder and removes what a killed run left incomplete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if _TEMPORARY in path.name or path.name.endswith(_OLD):
                shutil.rmtree(path, ignore_errors=True)

    def finish(self, step: int) -> None:
        """Flushes this process's files of a checkpoint and writes their digests.

        Process 0 also flushes the folders, so that the checkpoint's name is on disk.
        """
        own = _written_by(process(), digests.files_of(self.path(step)))
        for path in own:
            durable.sync(path)
        name = f"digests.{process()}-{processes()}.json"  # see `_digest_files`
        digests.write_digests(self.path(step), own, name)
        if is_main():
            durable.sync_folders(self.path(step))
            durable.sync(self.folder)

    def damage(self, step: int, part: int = 0, parts: int = 1) -> str | None:
        """Compares files with their digests; returns the first difference, or None.

        Args:
          step: step of the checkpoint.
          part: which share of the files to compare, from 0.
          parts: number of shares, so that processes can divide the work.
        """
        files = sorted(self.path(step).glob("digests.*.json"))
        if len(files) < (_digest_files(files[0]) if files else 1):
            _log.info(
                "checkpoint %d lacks digests (it is an older version's, or the run was "
                "killed behind it), so not all of its files are checked",
                step,
            )
        try:
            tables = [digests.read_digests(path) for path in files]
        except ValueError as error:
            return str(error)
        merged = {name: found for table in tables for name, found in table.items()}
        share = dict(list(merged.items())[part::parts])
        return next(digests.changed(self.path(step), share), None)

    def damaged_path(self, step: int) -> Path:
        """Where `set_aside` moves a checkpoint."""
        return self.folder / f"{step}{_DAMAGED}"

    def set_aside(self, step: int) -> None:
        """Renames a damaged checkpoint, so that it no longer counts as one."""
        target = self.damaged_path(step)
        shutil.rmtree(target, ignore_errors=True)
        durable.replace(self.path(step), target)

    def remove(self, step: int) -> None:
        """Removes a checkpoint, if it exists.

        It is renamed first, so that a checkpoint that is half removed has no number.
        """
        path = self.path(step)
        if path.is_dir():
            old = path.with_name(path.name + _OLD)
            shutil.rmtree(old, ignore_errors=True)
            path.replace(old)
            shutil.rmtree(old)

    def remove_older(self, step: int, keep: int) -> None:
        """Keeps the `keep` newest checkpoints up to `step`, which is complete."""
        for old in [found for found in self.steps() if found <= step][:-keep]:
            self.remove(old)


def _written_by(number: int, files: list[Path]) -> list[Path]:
    """Files of a checkpoint that a process wrote; shared ones belong to process 0.

    Files of digests belong to none: another process may be writing its own just now.
    """

    def owner(path: Path) -> int:
        marked = [part for part in path.parts if "process_" in part]
        digits = marked[-1].rpartition("process_")[2] if marked else ""
        return int(digits) if digits.isdigit() else 0

    written = (path for path in files if "digests." not in path.name)
    return [path for path in written if owner(path) == number]


def _digest_files(path: Path) -> int:
    """Number of digest files of a checkpoint, from the name of one of them."""
    return int(path.name.split(".")[1].split("-")[1])
