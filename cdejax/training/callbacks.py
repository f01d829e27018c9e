"""Callbacks: user code that a training run calls, and that can end it early."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdejax.runtime.processes import from_main, is_main, main_only

Metrics = Mapping[str, float]
"""Values by name, as in metrics.jsonl."""


class StopTraining(Exception):
    """Raised by a callback to end the run early.

    The step that is running is finished and a checkpoint is written; then training
    returns as after its last step. A later start resumes from the checkpoint.
    """


class Callback:
    """Base class of callbacks: override the methods that you need.

    Process 0 calls them in the training thread, so they delay training. Raising
    `StopTraining` in `on_step`, `on_evaluation` or `on_checkpoint` ends the run early.
    Any other exception also ends it with a checkpoint, and the training call then
    raises it. Methods are still called until the run has ended.
    """

    every: int = 1
    """Number of steps between calls of `on_step`, which is always called for the last
    step."""

    def on_start(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Called when the run starts or resumes.

        Args:
          folder: the run's folder, named after the variant.
          facts: the line of metrics.jsonl: `event` (`start` or `resume`), `step`
            (number of steps completed before), `total_steps` and more.
        """

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Called after a step.

        Args:
          step: number of completed steps, 1 after the first step.
          metrics: `loss`, `gradient_norm`, `learning_rate`, `pairs_per_second` and
            more.
        """

    def on_evaluation(self, step: int, metrics: Metrics) -> None:
        """Called after an evaluation on the held-out pairs.

        Args:
          step: number of completed steps.
          metrics: the metric that selects checkpoints, such as `heldout_ndcg@10`.
        """

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Called when a checkpoint is complete on disk.

        Checkpoints are written in the background, so later steps may have been
        completed already.

        Args:
          step: number of completed steps when the checkpoint was taken.
          folder: the checkpoint; later ones replace it (see
            `training.keep_checkpoints`).
        """

    def on_end(self, step: int) -> None:
        """Called when the run ends, for any reason, if `on_start` was called.

        Args:
          step: number of completed steps.
        """


def check_callbacks(given: Sequence[Callback]) -> None:
    """Checks callbacks.

    Raises:
      ValueError: `given` is not a sequence of `Callback`s, or the `every` of one is
        less than 1.
    """
    if not isinstance(given, Sequence):
        raise ValueError(f"callbacks: {given!r} is not a list of callbacks")
    for callback in given:
        if not isinstance(callback, Callback):
            raise ValueError(
                f"callbacks: {callback!r} is not a Callback; subclass "
                "cdejax.training.callbacks.Callback"
            )
        if callback.every < 1:
            name = type(callback).__name__
            raise ValueError(f"{name}.every is {callback.every}; set 1 or more")


class Callbacks:
    """The callbacks of a run; all processes call its methods in the same order.

    Args:
      own: callbacks that write the run's own files; their exceptions are raised
        immediately.
      given: the user's callbacks. After each call, all processes are informed whether
        to stop.

    Raises:
      ValueError: as for `check_callbacks`, for `given`.
    """

    def __init__(self, own: Sequence[Callback], given: Sequence[Callback] = ()):
        self._own, self.given = tuple(own), tuple(given)
        self._started: list[Callback] = []
        self._error: Exception | None = None
        self.stopping = False
        """Whether a callback has raised `StopTraining` or another exception."""
        check_callbacks(given)

    def start(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Calls `on_start`; an exception there ends the run before its first step."""

        def call() -> None:
            for callback in (*self._own, *self.given):
                callback.on_start(folder, facts)
                self._started.append(callback)

        main_only("callbacks", call)

    def step(self, step: int, last: bool, metrics: Callable[[], Metrics]) -> None:
        """Calls `on_step` of the callbacks for which it is due.

        Args:
          step: number of completed steps.
          last: whether this is the last step.
          metrics: computes the metrics; only called if a callback is due.
        """
        own, given = (
            [callback for callback in callbacks if last or step % callback.every == 0]
            for callbacks in (self._own, self.given)
        )
        if own or given:
            values = metrics()
            self._call(own, given, lambda callback: callback.on_step(step, values))

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Calls `on_evaluation`."""
        self._call_all(lambda callback: callback.on_evaluation(step, metrics))

    def checkpoint(self, step: int, folder: Path) -> None:
        """Calls `on_checkpoint`."""
        self._call_all(lambda callback: callback.on_checkpoint(step, folder))

    def end(self, step: int) -> None:
        """Calls `on_end` of all callbacks that were started, even if one fails."""
        with contextlib.ExitStack() as ends:
            for callback in reversed(self._started):
                ends.callback(callback.on_end, step)

    def raise_error(self) -> None:
        """Raises the first exception of a callback, if there was one.

        Raises:
          ValueError: on the other processes, if process 0 raises one.
        """

        def call() -> None:
            if self._error is not None:
                raise self._error

        main_only("callbacks", call)

    def _call_all(self, call: Callable[[Callback], None]) -> None:
        self._call(self._own, self.given, call)

    def _call(
        self,
        own: Sequence[Callback],
        given: Sequence[Callback],
        call: Callable[[Callback], None],
    ) -> None:
        if is_main():
            for callback in own:
                call(callback)
        if given:
            self.stopping |= from_main("callbacks", lambda: self._is_last(given, call))

    def _is_last(
        self, callbacks: Sequence[Callback], call: Callable[[Callback], None]
    ) -> bool:
        """Calls all callbacks; returns whether one stopped the run or failed."""
        ending = False
        for callback in callbacks:
            try:
                call(callback)
            except StopTraining:
                ending = True
            except Exception as error:  # user code may raise anything
                self._error, ending = self._error or error, True
        return ending
