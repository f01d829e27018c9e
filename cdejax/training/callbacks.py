"""Callbacks: what a training run reports, and how code of one's own ends it early."""

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

    The step that the devices work on is finished and a checkpoint is written; then
    training returns as it does at its end. A later start continues from there.
    """


class Callback:
    """Is told of a run's steps, evaluations and checkpoints; override what you need.

    Process 0 calls it, in the thread that trains, so time spent here is lost to
    training. `StopTraining`, raised in `on_step`, `on_evaluation` or `on_checkpoint`,
    ends the run early. Any other exception also ends it with a checkpoint, and is then
    raised by the call that trains. Until the run has ended, the calls go on.
    """

    every: int = 1
    """Steps between calls of `on_step`; it is always called for the last step."""

    def on_start(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """The run starts or resumes.

        Args:
          folder: of the run, named after the variant.
          facts: the line of metrics.jsonl: `event` (`start` or `resume`), `step` (steps
            done before), `total_steps` and more.
        """

    def on_step(self, step: int, metrics: Metrics) -> None:
        """A step is finished.

        Args:
          step: number of steps done, so the first is 1.
          metrics: `loss`, `gradient_norm`, `learning_rate`, `pairs_per_second` and
            more.
        """

    def on_evaluation(self, step: int, metrics: Metrics) -> None:
        """The held-out pairs were evaluated.

        Args:
          step: number of steps done.
          metrics: the measure that selects checkpoints, as in `heldout_ndcg@10`.
        """

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint is on disk, whole.

        Checkpoints are written in the background, so later steps may be done by now.

        Args:
          step: number of steps done when it was taken.
          folder: the checkpoint; a later one replaces it (see
            `training.keep_checkpoints`).
        """

    def on_end(self, step: int) -> None:
        """The run ends, in whatever way; called if `on_start` was.

        Args:
          step: number of steps done.
        """


def check_callbacks(given: Sequence[Callback]) -> None:
    """Refuses what cannot be called back.

    Raises:
      ValueError: no sequence of `Callback`s, or one whose `every` is not positive.
    """
    if not isinstance(given, Sequence):
        raise ValueError(f"callbacks: {given!r} is no list of callbacks")
    for callback in given:
        if not isinstance(callback, Callback):
            raise ValueError(
                f"callbacks: {callback!r} is no Callback; make a subclass of "
                "cdejax.training.callbacks.Callback"
            )
        if callback.every < 1:
            name = type(callback).__name__
            raise ValueError(f"{name}.every is {callback.every}; set 1 or more")


class Callbacks:
    """The callbacks of a run; all processes call the methods, in the same order.

    Args:
      own: those that write the run's own files; an exception in them is raised at once.
      given: those of the caller. After each of their calls all processes learn whether
        to stop.

    Raises:
      ValueError: `every` of a callback is no positive integer.
    """

    def __init__(self, own: Sequence[Callback], given: Sequence[Callback] = ()):
        self._own, self.given = tuple(own), tuple(given)
        self._started: list[Callback] = []
        self._error: Exception | None = None
        self.stopping = False
        """Whether a callback has asked for the end, or failed."""
        check_callbacks(given)

    def start(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Calls `on_start`; what that raises ends the run before its first step."""

        def call() -> None:
            for callback in (*self._own, *self.given):
                callback.on_start(folder, facts)
                self._started.append(callback)

        main_only("callbacks", call)

    def step(self, step: int, last: bool, metrics: Callable[[], Metrics]) -> None:
        """Calls `on_step` where it is due, with metrics made only if it is."""
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
        """Calls `on_end` of all that were started, even if one of them fails."""
        with contextlib.ExitStack() as ends:
            for callback in reversed(self._started):
                ends.callback(callback.on_end, step)

    def raise_error(self) -> None:
        """Raises the first exception that a callback raised, if there is one.

        Raises:
          ValueError: on the other processes, that process 0 raised one.
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
        """Calls them all; whether one of them wants the run to end, or failed."""
        ending = False
        for callback in callbacks:
            try:
                call(callback)
            except StopTraining:
                ending = True
            except Exception as error:  # whatever a user's code runs into
                self._error, ending = self._error or error, True
        return ending
