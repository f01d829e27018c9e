"""Checkpoints: asynchronous, exact, and safe against a kill at any moment."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cdejax.runtime.processes import (
    agree,
    from_main,
    is_main,
    main_only,
    process,
    processes,
)
from cdejax.storage import digests, durable
from cdejax.storage.artifacts import fingerprint, read_json, write_json
from cdejax.training.sharding import shardings_of

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ITEM = "default"
"""Orbax's name for the one thing that a checkpoint of ours holds."""
_TEMPORARY = ".orbax-checkpoint-tmp"
_DAMAGED, _OLD = ".damaged", ".old"
"""Endings of folders that no longer count as checkpoints."""


class _Unread(NamedTuple):
    """A checkpoint that was passed over, and why."""

    step: int
    reason: str


class Checkpoints:
    """Numbered checkpoints of a pytree in a folder, written by Orbax.

    A checkpoint counts once its folder has been renamed to its number; what a killed
    run left under another name does not count. Behind that, every process brings the
    files that it wrote to disk and leaves their digests beside them; only then are
    older checkpoints removed. Leaves are stored under their paths, so a checkpoint does
    not depend on the classes that the pytree is made of.

    Args:
      folder: where they are.
      keep: how many of the newest stay.
      alone: only this process calls the methods, and only to read. Otherwise all
        processes do, in the same order: each writes and reads what its devices hold.
    """

    def __init__(self, folder: str | Path, keep: int, *, alone: bool = False):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").addFilter(_said_by_us)
        logging.getLogger("asyncio").addFilter(_was_retrieved)
        _hide_late_writes()
        self._ocp, self._alone, self._keep = ocp, alone, keep
        self.folder = Path(folder).resolve()
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=process() if alone else 0,
                active_processes={process()} if alone else None,
            ),
        )
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._finished: Future[None] | None = None
        if not alone:
            main_only("left-overs", self._clear)

    def save(self, step: int, state: Any) -> None:
        """Starts writing a checkpoint; the run goes on meanwhile.

        Raises:
          ValueError: the one before could not be written, or a number of this one is
            not finite (then nothing is written).
        """
        self.wait()
        self._check_finite(step, state)
        args = self._ocp.args.StandardSave(_by_path(state))
        main_only("step", lambda: _remove(self._path(step)))
        with self._writing():
            self._checkpointer.save(
                self._path(step), args=self._ocp.args.Composite(**{_ITEM: args})
            )
        self._finished = self._threads.submit(self._finish, step)

    def wait(self) -> None:
        """Waits until everything saved is on disk; ValueError if it cannot be."""
        if self._finished is not None:
            with self._writing():
                self._finished.result()

    def _path(self, step: int) -> Path:
        return self.folder / str(step)

    def _finish(self, step: int) -> None:
        """Behind Orbax's last step: digests, and no more checkpoints than wanted."""
        try:
            self._checkpointer.wait_until_finished()
            own = _written_by(process(), digests.files_of(self._path(step)))
            for path in own:
                durable.sync(path)
            name = f"digests.{process()}-{processes()}.json"  # see `_parts`
            digests.write_digests(self._path(step), own, name)
            if is_main():
                durable.sync_folders(self._path(step))
                durable.sync(self.folder)
                self._remove_older(step)
        except BaseException:
            if is_main():
                self._clear()  # space for what else is to be written
            raise

    def _remove_older(self, step: int) -> None:
        """Leaves `keep` checkpoints up to this one, which is whole."""
        steps = [found for found in saved_steps(self.folder) if found <= step]
        for old in steps[: -self._keep]:
            _remove(self._path(old))

    def _clear(self) -> None:
        """Makes the folder, and removes what a killed run left half-done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if _TEMPORARY in path.name or path.name.endswith(_OLD):
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever Orbax's threads ran into
            full = "No space left on device"
            reason = full if full in str(error) else _first_line(error)
            raise ValueError(
                f"{self.folder}: a checkpoint could not be written ({reason}). Free "
                "some space and start again: the run goes on from its last whole "
                "checkpoint."
            ) from error

    def _check_finite(self, step: int, state: Any) -> None:
        leaves = {
            path: leaf
            for path, leaf in _by_path(state).items()
            if jnp.issubdtype(leaf.dtype, jnp.inexact)
        }
        found = jax.device_get(_all_finite(leaves))
        if bad := [path for path, finite in found.items() if not finite]:
            whole = self.steps()
            last = f"the last checkpoint is {whole[-1]}" if whole else "there is none"
            raise ValueError(
                f"step {step}: {len(bad)} of {len(found)} arrays are not finite (first "
                f"{bad[0]}), so no checkpoint of it is written; {last}. Lower "
                "training.learning_rate and start again."
            )

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, oldest first."""
        if self._alone:
            return saved_steps(self.folder)
        return from_main("steps", lambda: saved_steps(self.folder))

    def restore_latest(self, state: T, mesh: Mesh) -> tuple[int, T] | None:
        """The newest whole checkpoint, in the shape of `state`.

        The arrays lie on the mesh as `sharding` puts them, whatever mesh wrote them.
        Newer ones that are damaged are named and set aside. To a reader that is alone
        the newest is the only one: it must not take another for the end of the run.
        None where there is no checkpoint.

        Raises:
          ValueError: there are checkpoints, but none can be read.
        """
        unread: list[_Unread] = []
        steps = self.steps()
        for step in reversed(steps[-1:] if self._alone else steps):
            found = self._try_restore(step, state, mesh)
            fine = not isinstance(found, _Unread)
            if fine if self._alone else agree(fine):
                self._set_aside(unread, step)
                if not self._alone:
                    main_only("older", functools.partial(self._remove_older, step))
                return step, found  # type: ignore[return-value]
            unread.append(
                found
                if isinstance(found, _Unread)
                else _Unread(step, "another process cannot read it")
            )
        if unread:
            raise self._unreadable(unread)
        return None

    def _unreadable(self, unread: list[_Unread]) -> ValueError:
        step, reason = unread[0]
        if self._alone:
            return ValueError(
                f"{self.folder}: checkpoint {step} cannot be read into this model "
                f"({reason}). Is it another model's? Else run `cdejax train` again, "
                "which goes on from the last whole checkpoint."
            )
        return ValueError(
            f"{self.folder}: none of the checkpoints {sorted(x.step for x in unread)} "
            f"can be read into this model ({step}: {reason}). Another model, or "
            "damaged files: move the folder away to start anew, or choose another "
            "`output`."
        )

    def _set_aside(self, unread: list[_Unread], step: int) -> None:
        """Renames damaged checkpoints, so that they hide no later one."""
        for damaged, reason in unread:
            _log.warning(
                "checkpoint %d is damaged (%s): it is set aside as %s%s, and "
                "checkpoint %d is taken",
                *(damaged, reason, self._path(damaged), _DAMAGED, step),
            )
        if unread:
            main_only("damaged", lambda: [self.set_aside(x.step) for x in unread])

    def set_aside(self, step: int) -> None:
        """Renames a checkpoint so that it does not count any more."""
        place = self.folder / f"{step}{_DAMAGED}"
        shutil.rmtree(place, ignore_errors=True)
        durable.replace(self._path(step), place)

    def damage(self, step: int, part: int = 0, parts: int = 1) -> str | None:
        """What its digests say against a checkpoint, or against a part of its files."""
        files = sorted(self._path(step).glob("digests.*.json"))
        if len(files) < (_parts(files[0]) if files else 1):
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
        return next(digests.changed(self._path(step), share), None)

    def _try_restore(self, step: int, state: T, mesh: Mesh) -> T | _Unread:
        part = (0, 1) if self._alone else (process(), processes())
        try:
            damage = self.damage(step, *part)
            if (damage is not None) if self._alone else not agree(damage is None):
                return _Unread(step, damage or "another process finds it damaged")
            return self._restore(step, state, mesh)
        except Exception as error:  # Orbax raises many kinds for damaged files
            return _Unread(step, f"cannot be read: {_first_line(error)}")

    def _restore(self, step: int, state: T, mesh: Mesh) -> T:
        shardings = _by_path(shardings_of(state, mesh))
        target = {
            path: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[path])
            for path, x in _by_path(state).items()
        }
        args = self._ocp.args.StandardRestore(target)
        stored = self._checkpointer.restore(
            self._path(step), args=self._ocp.args.Composite(**{_ITEM: args})
        )[_ITEM]
        leaves = [stored[path] for path in target]
        return jax.tree.unflatten(jax.tree.structure(state), leaves)

    def close(self) -> None:
        """Waits until everything saved is on disk; ValueError if it cannot be."""
        try:
            self.wait()
        finally:
            self._threads.shutdown()
            with contextlib.suppress(Exception):  # said by `wait`
                self._checkpointer.close()


class Best:
    """The checkpoint with the highest score so far, and the score."""

    def __init__(self, folder: str | Path):
        self._checkpoints = Checkpoints(folder, keep=1)
        self._file = self._checkpoints.folder / "best.json"
        self.score: float = from_main("best score", self._stored_score)
        """Minus infinity where there is none, or none that can be used."""

    def _stored_score(self) -> float:
        """The score that is kept, if its checkpoint is there, and whole, too."""
        if not self._file.is_file():
            return -math.inf
        found = read_json(self._file)
        try:
            step, score = int(found["step"]), float(found["score"])
            if found.get("digest") not in (None, _score_digest(step, score)):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise ValueError(
                f"{self._file}: no step and score in it, or it was changed; remove "
                "this file, the next evaluation writes it anew"
            ) from None
        if step not in self._checkpoints.steps():
            return -math.inf
        if (damage := self._checkpoints.damage(step)) is None:
            return score
        self._checkpoints.set_aside(step)
        _log.warning(
            "%s: checkpoint %d is damaged (%s) and set aside: the next evaluation is "
            "the best so far",
            *(self._checkpoints.folder, step, damage),
        )
        return -math.inf

    def offer(self, step: int, score: float, params: Any) -> None:
        """Keeps the parameters if they are better, or as good and newer."""
        if score < self.score:
            return
        self._checkpoints.save(step, params)
        # On disk before a later checkpoint of the run can be: a run that was killed and
        # resumed behind this step would never write it again.
        self._checkpoints.wait()
        self.score = score
        kept = {"step": step, "score": score, "digest": _score_digest(step, score)}
        main_only("best", lambda: write_json(self._file, kept))

    def close(self) -> None:
        """Waits until everything saved is on disk."""
        self._checkpoints.close()


def saved_steps(folder: Path) -> list[int]:
    """Steps of the finished checkpoints in a folder, oldest first."""
    folders = (path for path in folder.glob("*") if path.is_dir())
    return sorted(int(path.name) for path in folders if path.name.isdigit())


@jax.jit
def _all_finite(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.isfinite(leaf).all() for name, leaf in leaves.items()}


def _score_digest(step: int, score: float) -> str:
    return fingerprint([step, score])


def _written_by(number: int, files: list[Path]) -> list[Path]:
    """Files of a checkpoint that a process wrote; what all share is process 0's.

    Digests are nobody's: another process may be writing its own just now.
    """

    def owner(path: Path) -> int:
        marked = [part for part in path.parts if "process_" in part]
        digits = marked[-1].rpartition("process_")[2] if marked else ""
        return int(digits) if digits.isdigit() else 0

    written = (path for path in files if "digests." not in path.name)
    return [path for path in written if owner(path) == number]


def _parts(path: Path) -> int:
    """How many files of digests there are, from the name of one."""
    return int(path.name.split(".")[1].split("-")[1])


def _remove(path: Path) -> None:
    """Removes a checkpoint; one that is half removed has no number any more."""
    if path.is_dir():
        old = path.with_name(path.name + _OLD)
        shutil.rmtree(old, ignore_errors=True)
        path.replace(old)
        shutil.rmtree(old)


def _said_by_us(record: logging.LogRecord) -> bool:
    """Whether to log: Orbax logs tracebacks of what it raises, thread by thread."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _was_retrieved(record: logging.LogRecord) -> bool:
    """Whether to log: of writes that fail together, Orbax awaits the first alone."""
    return "exception was never retrieved" not in record.getMessage()


@functools.cache
def _hide_late_writes() -> None:
    """Hides tracebacks of writes that end behind one that failed.

    Orbax has closed their event loop by then, and TensorStore prints that for each. Why
    the checkpoint could not be written is said once, by `Checkpoints`.
    """
    shown = sys.unraisablehook

    def show(late: sys.UnraisableHookArgs) -> None:
        if str(late.exc_value) != "Event loop is closed":
            shown(late)

    sys.unraisablehook = show


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _by_path(state: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
