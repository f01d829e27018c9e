"""Metrics of a run: JSON lines and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cdejax.runtime.processes import is_main
from cdejax.storage import durable, guarded

FILE = "metrics.jsonl"
_MAX_BYTES = 1 << 33
_log = logging.getLogger(__name__)


class MetricsLog:
    """Logs metrics to `metrics.jsonl`, one line per logged step, and to TensorBoard.

    Lines of steps that will be repeated, after a killed run's last checkpoint, are
    removed first. Every start adds a line `{"event": …}`. Of several processes only
    process 0 writes. If TensorBoard's files cannot be written, a warning says so and
    training continues without them.
    """

    def __init__(self, folder: str | Path, start: int, event: Mapping[str, Any]):
        self.path = Path(folder) / FILE
        self._writes = is_main()
        if not self._writes:
            return
        _drop_after(self.path, start)
        self._stream = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        self._board = _Board(Path(folder) / "tensorboard", start)
        self._write({**event, "time": time.time()})

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the values of a step, counted from 1."""
        if not self._writes:
            return
        self._write(
            {"step": step, **{k: _finite_or_text(v) for k, v in values.items()}}
        )
        self._board.add(step, values)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Closes the files."""
        if not self._writes:
            return
        self._stream.close()
        self._board.close()


class _Board:
    """TensorBoard's files, written without a queue, which blocks if its thread dies."""

    def __init__(self, folder: Path, start: int):
        with _hide_torch():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2
        self._events: EventsWriter | None = None
        with self._disable_on_error():
            folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(folder / "events"))
            begun = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._write(step=start, session_log=begun)  # purges later steps

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX.summary import scalar

        with self._disable_on_error():
            for name, value in values.items():
                self._write(step=step, summary=scalar(name, value))
            if self._events is not None:
                self._events.flush()

    def close(self) -> None:
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
    """Hides torch from tensorboardX, which would take seconds to import it."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not installed"
    try:
        yield
    finally:
        del sys.modules["torch"]


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """All lines of a run's `metrics.jsonl`, events included."""
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    lines = guarded.read_text(path, _MAX_BYTES).splitlines()
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.endswith("}")]
    return [_read_line(f"{path}:{number}", line) for number, line in numbered]


def _read_line(place: str, line: str) -> dict[str, Any]:
    try:
        value = guarded.parse_json(line)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        return value
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error}); remove the line") from None


def _finite_or_text(value: float) -> float | str:
    """A number, as text if it is not finite, which JSON does not support."""
    value = float(value)
    return value if math.isfinite(value) else str(value)


def _drop_after(path: Path, start: int) -> None:
    """Removes lines of steps after `start`, and an incomplete last line."""
    lines = read_metrics(path.parent)
    kept = [line for line in lines if line.get("step", 0) <= start]
    text = "".join(json.dumps(line) + "\n" for line in kept)
    durable.write_file(path, lambda stream: stream.write(text.encode()))
