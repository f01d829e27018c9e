"""Checkpoints: asynchronous, exact, and safe if the run is killed at any moment."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cdejax.runtime.processes import (
    all_agree,
    from_main,
    is_main,
    main_only,
    process,
    processes,
)
from cdejax.training.checkpoint_folder import CheckpointFolder
from cdejax.training.orbax_messages import silence_tracebacks
from cdejax.training.sharding import shardings_of

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ITEM = "default"
"""Orbax's name for the single item that our checkpoints hold."""


class _Unread(NamedTuple):
    """A checkpoint that could not be read, and why."""

    step: int
    reason: str


class Checkpoints:
    """Numbered checkpoints of a pytree in a folder, written by Orbax.

    A checkpoint is complete once its folder has been renamed to its number; what a
    killed run left under another name is ignored. After the rename, every process
    flushes the files that it wrote and writes their digests; only then are older
    checkpoints removed. Leaves are stored under their paths, so a checkpoint does not
    depend on the classes that the pytree is made of.

    Args:
      folder: where the checkpoints are.
      keep: number of newest checkpoints to keep.
      alone: only this process calls the methods, and only to read. Otherwise all
        processes call them in the same order: each writes and reads the shards of its
        own devices.
    """

    def __init__(self, folder: str | Path, keep: int, *, alone: bool = False):
        import orbax.checkpoint as ocp

        silence_tracebacks()
        self._ocp, self._alone, self._keep = ocp, alone, keep
        self.files = CheckpointFolder(folder)
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
            main_only("left-overs", self.files.create)

    def save(self, step: int, state: Any) -> None:
        """Starts writing a checkpoint in the background.

        Raises:
          ValueError: the previous one could not be written, or a value of this one is
            not finite (then nothing is written).
        """
        self.wait()
        self._check_finite(step, state)
        args = self._ocp.args.StandardSave(_by_path(state))
        main_only("step", lambda: self.files.remove(step))
        with self._writing():
            self._checkpointer.save(
                self.files.path(step), args=self._ocp.args.Composite(**{_ITEM: args})
            )
        self._finished = self._threads.submit(self._finish, step)

    def wait(self) -> None:
        """Waits until everything saved is on disk; ValueError if it cannot be."""
        if self._finished is not None:
            with self._writing():
                self._finished.result()

    def written(self) -> bool:
        """Whether this process has finished writing the last checkpoint saved."""
        found = self._finished
        return found is not None and found.done() and found.exception() is None

    def _finish(self, step: int) -> None:
        """Once Orbax is done, writes digests and removes older checkpoints."""
        try:
            self._checkpointer.wait_until_finished()
            self.files.finish(step)
            if is_main():
                self.files.remove_older(step, self._keep)
        except BaseException:
            if is_main():
                self.files.create()  # frees space for other files
            raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever Orbax's threads ran into
            full = "No space left on device"
            reason = full if full in str(error) else _first_line(error)
            raise ValueError(
                f"{self.files.folder}: a checkpoint could not be written ({reason}). "
                "Free some space and start again: the run goes on from its last whole "
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
        """Steps of the complete checkpoints, oldest first; equal on all processes."""
        if self._alone:
            return self.files.steps()
        return from_main("steps", self.files.steps)

    def restore_latest(self, state: T, mesh: Mesh) -> tuple[int, T] | None:
        """Restores the newest undamaged checkpoint, with its step.

        Newer checkpoints that are damaged are set aside with a warning. A reader that
        is alone tries only the newest: it must not mistake an older one for the end of
        the run.

        Args:
          state: pytree with the structure, shapes and dtypes to restore.
          mesh: mesh to shard the arrays over, as `sharding` does; the one that wrote
            them may differ.

        Returns:
          Step and state, or None if there is no checkpoint.

        Raises:
          ValueError: there are checkpoints, but none can be read.
        """
        unread: list[_Unread] = []
        steps = self.steps()
        for step in reversed(steps[-1:] if self._alone else steps):
            found = self._try_restore(step, state, mesh)
            fine = not isinstance(found, _Unread)
            if self._all(fine):
                self._set_aside(unread, step)
                if not self._alone:
                    remove = self.files.remove_older
                    main_only("older", functools.partial(remove, step, self._keep))
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
        folder, (step, reason) = self.files.folder, unread[0]
        if self._alone:
            return ValueError(
                f"{folder}: checkpoint {step} cannot be read into this model "
                f"({reason}). Is it another model's? Else run `cdejax train` again, "
                "which goes on from the last whole checkpoint."
            )
        return ValueError(
            f"{folder}: none of the checkpoints {sorted(x.step for x in unread)} can "
            f"be read into this model ({step}: {reason}). Another model, or damaged "
            "files: move the folder away to start anew, or choose another `output`."
        )

    def _set_aside(self, unread: list[_Unread], step: int) -> None:
        """Sets damaged checkpoints aside, so that they cannot hide later ones."""
        for damaged, reason in unread:
            _log.warning(
                "checkpoint %d is damaged (%s): it is set aside as %s, and "
                "checkpoint %d is taken",
                *(damaged, reason, self.files.damaged_path(damaged), step),
            )
        if unread:
            main_only("damaged", lambda: [self.files.set_aside(x.step) for x in unread])

    def _all(self, fine: bool) -> bool:
        """Whether it is fine on all processes that restore."""
        return fine if self._alone else all_agree(fine)

    def _try_restore(self, step: int, state: T, mesh: Mesh) -> T | _Unread:
        part = (0, 1) if self._alone else (process(), processes())
        try:
            damage = self.files.damage(step, *part)
            if not self._all(damage is None):
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
            self.files.path(step), args=self._ocp.args.Composite(**{_ITEM: args})
        )[_ITEM]
        leaves = [stored[path] for path in target]
        return jax.tree.unflatten(jax.tree.structure(state), leaves)

    def close(self) -> None:
        """Waits until everything saved is on disk; ValueError if it cannot be."""
        try:
            self.wait()
        finally:
            self._threads.shutdown()
            with contextlib.suppress(Exception):  # `wait` has raised it
                self._checkpointer.close()


@jax.jit
def _all_finite(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.isfinite(leaf).all() for name, leaf in leaves.items()}


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _by_path(state: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
