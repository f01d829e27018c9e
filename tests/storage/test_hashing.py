"""A file is hashed once in a process, and again when it has changed."""

import os
import sys

import pytest

from cdejax.storage import hashing
from cdejax.storage.artifacts import hash_files
from cdejax.storage.hashing import file_hash

OPENED: list[str] = []
"""Every path that Python opens in this process: an audit hook cannot be taken away."""
sys.addaudithook(
    lambda event, args: OPENED.append(str(args[0])) if event == "open" else None
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"one" * 1000)
    return path


def reads(path) -> int:
    return OPENED.count(str(path))


def test_a_file_is_read_once(file, monkeypatch):
    monkeypatch.setattr(hashing, "SETTLED", -1.0)  # as if it were written long ago
    before = reads(file)
    found = {file_hash(file) for _ in range(94)} | {hash_files(file) for _ in range(3)}
    assert len(found) == 2
    assert hash_files(file.parent) == hash_files(file.parent)
    assert reads(file) == before + 1


def test_a_file_that_was_just_written_is_read_again(file):
    """Two changes within a step of the file system's clock look like one."""
    before = os.stat(file)
    first = file_hash(file)
    with open(file, "r+b") as stream:
        stream.write(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_hash(file) != first


@pytest.mark.parametrize("way", ["in place", "renamed", "with its time set back"])
def test_a_change_is_seen(file, way, monkeypatch):
    monkeypatch.setattr(hashing, "SETTLED", 0.02)
    while not hashing.is_settled(hashing.signature(file)):
        pass
    first, before = file_hash(file), os.stat(file)
    if way == "renamed":
        (file.parent / "new").write_bytes(b"two" * 1000)
        os.replace(file.parent / "new", file)
    else:
        with open(file, "r+b") as stream:
            stream.write(b"two")
    if way == "with its time set back":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_hash(file) != first
