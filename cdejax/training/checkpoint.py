"""Checkpoints: asynchronous, exact, and safe against a kill at any moment."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from cdejax.artifacts import read_json, write_json
from cdejax.distributed import agree, from_main, main_only, process
from cdejax.training.sharding import shardings_of

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Checkpoints:
    """Numbered checkpoints of a pytree in a folder, written by Orbax.

    A checkpoint counts once its folder has been renamed to its number; what a killed
    run left under another name is passed over, and so is one that cannot be read.
    Leaves are stored under their paths, so a checkpoint does not depend on the classes
    that the pytree is made of.

    Args:
      folder: where they are.
      keep: how many of the newest stay.
      alone: only this process calls the methods, and only to read. Otherwise all
        processes do, in the same order: each writes and reads what its devices hold.
    """

    def __init__(self, folder: str | Path, keep: int, *, alone: bool = False):
        import orbax.checkpoint as ocp

        members = {process()} if alone else None
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            create=not alone,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=process() if alone else 0, active_processes=members
            ),
        )
        self._ocp, self._alone = ocp, alone
        self.folder = Path(folder).resolve()
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state: Any) -> None:
        """Starts writing a checkpoint; the run goes on meanwhile.

        Raises:
          ValueError: the one before could not be written.
        """
        args = self._ocp.args.StandardSave(_by_path(state))
        with self._writing():
            if step in self._manager.all_steps():
                self._manager.delete(step)
            self._manager.save(step, args=args, force=True)

    def wait(self) -> None:
        """Waits until everything saved is on disk; ValueError if it cannot be."""
        with self._writing():
            self._manager.wait_until_finished()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever Orbax's threads ran into
            full = "No space left on device"
            reason = full if full in str(error) else str(error).splitlines()[0]
            raise ValueError(
                f"{self.folder}: a checkpoint could not be written ({reason}). Free "
                "some space and start again: the run goes on from its last whole "
                "checkpoint."
            ) from error

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, oldest first."""
        if self._alone:
            return sorted(self._manager.all_steps())
        return from_main("steps", lambda: sorted(self._manager.all_steps()))

    def restore_latest(self, state: T, mesh: Mesh) -> tuple[int, T] | None:
        """The newest checkpoint that can be read, in the shape of `state`.

        The arrays lie on the mesh as `sharding` puts them, whatever mesh wrote them.
        None where there is no checkpoint.

        Raises:
          ValueError: there are checkpoints, but none can be read.
        """
        steps = self.steps()
        for step in reversed(steps):
            found = self._try_restore(step, state, mesh)
            if (found is not None) if self._alone else agree(found is not None):
                assert found is not None
                return step, found
        if steps:
            raise ValueError(
                f"{self.folder}: none of the checkpoints {steps} can be read into this "
                "model. Another model, or damaged files: remove the folder to start "
                "anew, or choose another `output`."
            )
        return None

    def _try_restore(self, step: int, state: T, mesh: Mesh) -> T | None:
        try:
            return self._restore(step, state, mesh)
        except Exception as error:  # Orbax raises many kinds for damaged files
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            _log.warning("checkpoint %d cannot be read: %s", step, reason)
            return None

    def _restore(self, step: int, state: T, mesh: Mesh) -> T:
        shardings = _by_path(shardings_of(state, mesh))
        target = {
            path: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardings[path])
            for path, x in _by_path(state).items()
        }
        args = self._ocp.args.StandardRestore(target)
        stored = self._manager.restore(step, args=args)
        leaves = [stored[path] for path in target]
        return jax.tree.unflatten(jax.tree.structure(state), leaves)

    def close(self) -> None:
        """Waits until everything saved is on disk; ValueError if it cannot be."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):  # said by `wait`
                self._manager.close()


class Best:
    """The checkpoint with the highest score so far, and the score."""

    def __init__(self, folder: str | Path):
        self._checkpoints = Checkpoints(folder, keep=1)
        self._file = self._checkpoints.folder / "best.json"
        steps = self._checkpoints.steps()
        self.score: float = from_main("best score", lambda: self._stored_score(steps))

    def _stored_score(self, steps: list[int]) -> float:
        """The score that is kept, if its checkpoint is there, too."""
        if not self._file.is_file():
            return -math.inf
        found = read_json(self._file)
        try:
            kept = int(found["step"]) in steps
            return float(found["score"]) if kept else -math.inf
        except (TypeError, KeyError, ValueError):
            raise ValueError(
                f"{self._file}: no step and score in it; remove the folder, the next "
                "evaluation writes it anew"
            ) from None

    def offer(self, step: int, score: float, params: Any) -> None:
        """Keeps the parameters if they are better, or as good and newer."""
        if score < self.score:
            return
        self._checkpoints.save(step, params)
        # On disk before a later checkpoint of the run can be: a run that was killed and
        # resumed behind this step would never write it again.
        self._checkpoints.wait()
        self.score = score
        kept = {"step": step, "score": score}
        main_only("best", lambda: write_json(self._file, kept))

    def close(self) -> None:
        """Waits until everything saved is on disk."""
        self._checkpoints.close()


def _by_path(state: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
