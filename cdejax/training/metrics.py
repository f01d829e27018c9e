"""Metrics of a run as JSON lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdejax.storage import durable, guarded
from cdejax.training.callbacks import Callback, Metrics

FILE = "metrics.jsonl"
_MAX_BYTES = 1 << 33


class MetricsLog(Callback):
    """Appends one line per logged step to `metrics.jsonl`.

    Lines of steps that will be run again (a killed run had gone on after its last
    checkpoint) are taken out first. Every start adds a line `{"event": …}`.

    Args:
      every: steps between lines.
    """

    def __init__(self, every: int = 1):
        self.every = every

    def on_start(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Opens the file and writes what is known of this start."""
        path = folder / FILE
        _drop_after(path, facts["step"])
        self._stream = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._write({**facts, "time": time.time()})

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Writes a line."""
        self._write(
            {"step": step, **{k: _finite_or_text(v) for k, v in metrics.items()}}
        )

    def on_evaluation(self, step: int, metrics: Metrics) -> None:
        """Writes a line, as for a step."""
        self.on_step(step, metrics)

    def on_end(self, step: int) -> None:
        """Closes the file."""
        self._stream.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


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
