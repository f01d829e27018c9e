"""What every benchmark writes beside its numbers, and where."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from cdejax.artifacts import write_json

RESULTS = Path(__file__).parent / "results"


def environment(*packages: str) -> dict[str, Any]:
    """Date, machine and how busy it is, devices and versions."""
    names = ("cdejax", "jax", "jaxlib", "numpy", *packages)
    devices = jax.local_devices()
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": _cpu(),
        "threads": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
    }


def save(path: Path, result: dict[str, Any], command: Sequence[str]) -> None:
    """Writes the numbers as JSON, with the command that gave them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"command": " ".join(command), **result})
    print(f"{path} written", flush=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()
