"""Writes the metrics of a run for TensorBoard."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdejax.training.callbacks import Callback, Metrics

_log = logging.getLogger(__name__)


class TensorBoard(Callback):
    """Writes metrics for TensorBoard to `tensorboard/` in the run's folder.

    Events are written synchronously: a queue would block if its thread died. If the
    files cannot be written, a warning is logged once and training continues without
    them.

    Args:
      every: number of steps between points.
    """

    def __init__(self, every: int = 1):
        self.every = every

    def on_start(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Opens the file; TensorBoard hides points of steps that will be repeated."""
        with _hide_torch():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2
        self._events: EventsWriter | None = None
        with self._disable_on_error():
            place = folder / "tensorboard"
            place.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(place / "events"))
            begun = self._proto.SessionLog(status=self._proto.SessionLog.START)
            # TensorBoard discards events of later steps that came before this one.
            self._write(step=facts["step"], session_log=begun)

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Writes a point of each metric."""
        from tensorboardX.summary import scalar

        with self._disable_on_error():
            for name, value in metrics.items():
                self._write(step=step, summary=scalar(name, value))
            if self._events is not None:
                self._events.flush()

    def on_evaluation(self, step: int, metrics: Metrics) -> None:
        """Writes a point of each metric."""
        self.on_step(step, metrics)

    def on_end(self, step: int) -> None:
        """Closes the file."""
        with self._disable_on_error():
            if self._events is not None:
                self._events.close()

    def _write(self, **content: Any) -> None:
        if self._events is not None:
            event = self._proto.Event(wall_time=time.time(), **content)
            self._events.write_event(event)

    @contextlib.contextmanager
    def _disable_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._events = None
            _log.warning("no more is written for TensorBoard: %s", error)


@contextlib.contextmanager
def _hide_torch() -> Iterator[None]:
    """Keeps tensorboardX from importing torch: it takes seconds and is not needed."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not installed"
    try:
        yield
    finally:
        del sys.modules["torch"]
