"""What is made once for all processes of a test run, by the first that asks for it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """The folder that `make(folder)` has filled; the others wait for it meanwhile.

    pytest-xdist gives each of its processes a folder in one that they share. Tests that
    change what they find take a copy.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / name, shared / f"{name}.done"
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # a failed attempt's
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
