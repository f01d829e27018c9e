"""What every benchmark writes beside its numbers, and where."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from cdejax.storage.artifacts import write_json

RESULTS = Path(__file__).parent / "results"
VARIABLES = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_FLAGS", "OMP_NUM_THREADS")
"""Settings that come from outside the command line."""


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
        "driver": _driver(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "variables": {k: os.environ[k] for k in VARIABLES if k in os.environ},
    }


def file_of(folder: Path, name: str, date: str) -> Path:
    """JSON of one benchmark, card and day."""
    card = jax.devices()[0].device_kind.lower().removeprefix("nvidia ")
    return folder / f"{name}-{re.sub(r'[^a-z0-9]+', '-', card)}-{date}.json"


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


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.splitlines()[0].strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()
