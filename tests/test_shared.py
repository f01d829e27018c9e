"""Several processes find what one of them has made."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.shared import made_once


def factory(folder) -> Any:
    """Stands for pytest's in one process."""
    folder.mkdir(exist_ok=True)
    return SimpleNamespace(getbasetemp=lambda: folder)


def test_one_makes_it_and_the_others_wait(tmp_path, monkeypatch):
    """Threads: the lock is of the open file, so it tells them apart as processes."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    calls = []

    def make(folder):
        calls.append(folder)
        time.sleep(0.2)
        (folder / "made").touch()

    def work(number):
        found = made_once(factory(tmp_path / f"popen-gw{number}"), "thing", make)
        return found, (found / "made").exists()

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert found == [(tmp_path / "thing", True)] * 3
    assert len(calls) == 1


def test_what_failed_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def fail(folder):
        (folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        made_once(factory(tmp_path), "thing", fail)
    found = made_once(factory(tmp_path), "thing", lambda folder: None)
    assert list(found.iterdir()) == []
