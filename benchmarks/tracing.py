"""Where the device's time goes, by class of kernel, from a trace of jax.profiler."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CLASSES = {
    "collectives": r"nccl|all-?_?reduce|all-?_?gather|reduce-?_?scatter|permute",
    "attention": r"fmha|flash|sdpa|attention|mha_|compute_dot_do_o|convert_dq_to",
    "matmul": r"gemm|nvjet|cutlass|cublas|xmma|dot|matmul|splitK",
    "copies": r"memcpy|memset|copy|transpose|dynamic-?_?update",
}
"""The first pattern that a kernel's name holds decides; all else is elementwise."""
REST = "elementwise and reductions"
_PATTERNS = {name: re.compile(text, re.I) for name, text in CLASSES.items()}
_AROUND = re.compile(r"Thunk|Threadpool|end: |(while|call|conditional)(\.|$)")
"""Events of a CPU's or a TPU's trace that hold others."""


class Event(NamedTuple):
    """A kernel's run."""

    name: str
    start: float
    end: float


def kernel_class(name: str) -> str:
    """Which class a kernel belongs to, by its name."""
    found = (kind for kind, pattern in _PATTERNS.items() if pattern.search(name))
    return next(found, REST)


def breakdown(folder: str, top: int = 40) -> dict[str, Any]:
    """Shares of the time between the first kernel's start and the last one's end.

    Of the device that was traced first. Kernels on several streams may overlap: then
    classes and idle time sum up to more than 1.
    """
    events = list(_kernels(newest(folder)))
    if not events:
        return {"note": "the trace holds no kernels"}
    first, last = min(e.start for e in events), max(e.end for e in events)
    span = last - first
    kernels, classes = defaultdict(float), defaultdict(float)
    for event in events:
        kernels[event.name] += event.end - event.start
        classes[kernel_class(event.name)] += event.end - event.start
    shares = {kind: spent / span for kind, spent in _largest(classes)}
    return {
        "milliseconds": span / 1e6,
        "shares": shares | {"idle": 1 - busy(events) / span},
        "kernels": {
            name: {"class": kernel_class(name), "share": spent / span}
            for name, spent in _largest(kernels)[:top]
        },
    }


def _largest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda pair: -pair[1])


def busy(events: list[Event]) -> float:
    """Time in which at least one event runs."""
    total, reached = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e.start):
        total += max(event.end - max(event.start, reached), 0.0)
        reached = max(reached, event.end)
    return total


def newest(folder: str) -> Path:
    """The trace that was written last."""
    return max(Path(folder).rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)


def _kernels(path: Path) -> Iterator[Event]:
    """Kernels of the first accelerator; without one, what XLA's CPU client ran."""
    from jax.profiler import ProfileData

    planes = list(ProfileData.from_file(str(path)).planes)
    devices = sorted(
        (plane for plane in planes if plane.name.startswith("/device:")),
        key=lambda plane: plane.name,
    )
    chosen = devices[:1] or [plane for plane in planes if plane.name == "/host:CPU"]
    for line in _lines([line for plane in chosen for line in plane.lines]):
        for event in line.events:
            if not _AROUND.match(event.name):
                start = event.start_ns
                yield Event(event.name, start, start + event.duration_ns)


def _lines(lines: list[Any]) -> list[Any]:
    """A GPU's streams; a TPU's operations; else what XLA's CPU client did."""
    for prefix in ("Stream", "XLA Ops", "tf_XLA"):
        if found := [line for line in lines if line.name.startswith(prefix)]:
            return found
    return []
