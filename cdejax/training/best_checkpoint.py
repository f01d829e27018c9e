"""The checkpoint with the highest evaluation score."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from cdejax.runtime.processes import from_main, main_only
from cdejax.storage.artifacts import fingerprint, read_json, write_json
from cdejax.training.checkpoint import Checkpoints

_log = logging.getLogger(__name__)


class BestCheckpoint:
    """The parameters with the highest score so far, and that score.

    Args:
      folder: holds the checkpoint, and `best.json` with its step and score.

    Raises:
      ValueError: `best.json` is damaged.
    """

    def __init__(self, folder: str | Path):
        self._checkpoints = Checkpoints(folder, keep=1)
        self._file = self._checkpoints.files.folder / "best.json"
        self.score: float = from_main("best score", self._stored_score)
        """Minus infinity if there is none, or its checkpoint is missing or damaged."""

    def _stored_score(self) -> float:
        """The stored score, if its checkpoint exists and is undamaged."""
        if not self._file.is_file():
            return -math.inf
        step, score = self._read()
        files = self._checkpoints.files
        if step not in files.steps():
            return -math.inf
        if (damage := files.damage(step)) is None:
            return score
        files.set_aside(step)
        _log.warning(
            "%s: checkpoint %d is damaged (%s) and set aside: the next evaluation is "
            "the best so far",
            *(files.folder, step, damage),
        )
        return -math.inf

    def _read(self) -> tuple[int, float]:
        """Step and score in the file; ValueError if they do not match their digest."""
        found = read_json(self._file)
        try:
            step, score = int(found["step"]), float(found["score"])
            if found.get("digest") not in (None, fingerprint([step, score])):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise ValueError(
                f"{self._file}: no step and score in it, or it was changed; remove "
                "this file, the next evaluation writes it anew"
            ) from None
        return step, score

    def offer(self, step: int, score: float, params: Any) -> None:
        """Saves the parameters if their score is the highest, or equal to it."""
        if score < self.score:
            return
        self._checkpoints.save(step, params)
        # Must be on disk before the run's next checkpoint can be: a run that is killed
        # and resumes after this step would never write it again.
        self._checkpoints.wait()
        self.score = score
        digest = fingerprint([step, score])
        stored = {"step": step, "score": score, "digest": digest}
        main_only("best", lambda: write_json(self._file, stored))

    def close(self) -> None:
        """Waits until everything saved is on disk."""
        self._checkpoints.close()
