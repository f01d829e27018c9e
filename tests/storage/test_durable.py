"""A kill, a full disk or a flipped bit leaves the old or the new, and is noticed."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cdejax.models.context import ARRAYS, INFO, Context
from cdejax.storage import digests, durable

KILLED = """
import os, signal, sys
from pathlib import Path
from cdejax.storage import durable
left = int(sys.argv[2])
plain = os.replace
def replace(*paths):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    plain(*paths)
os.replace = replace
def write(new):
    (new / "a").write_text("new")
    (new / "inner").mkdir()
    (new / "inner" / "b").write_text("new")
durable.write_together(Path(sys.argv[1]), write, gone=["a", "old"])
"""
"""Writes two files, and is killed before its n-th rename."""


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def fill(folder: Path) -> dict[str, str]:
    (folder / "inner").mkdir(parents=True)
    for name in ("a", "inner/b", "old", "other"):
        (folder / name).write_text("old")
    return content(folder)


@pytest.mark.parametrize("renames", range(4))
def test_files_that_belong_together_are_replaced_together(tmp_path, renames):
    before = fill(tmp_path / "out")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(renames)]
    done = subprocess.run(command, timeout=60)
    assert done.returncode == (0 if renames == 3 else -signal.SIGKILL)
    durable.recover(tmp_path / "out")
    left = {k: v for k, v in content(tmp_path / "out").items() if ".new-" not in k}
    new = {"a": "new", "inner/b": "new", "other": "old"}
    assert left == (new if renames else before)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_files_and_no_others(tmp_path):
    before = fill(tmp_path / "out")
    for write in (lambda new: (new / "a").write_text("new") and full(), full):
        with pytest.raises(OSError, match="No space left"):
            durable.write_together(tmp_path / "out", write)
        with pytest.raises(OSError, match="No space left"):
            durable.write_together(tmp_path / "fresh", write)
    with pytest.raises(OSError, match="No space left"):
        durable.write_file(tmp_path / "out" / "a", full)
    assert content(tmp_path) == {f"out/{name}": text for name, text in before.items()}
    assert not (tmp_path / "fresh").exists()


def test_names_appear_only_when_their_content_is_on_disk(tmp_path, monkeypatch):
    """A power cut keeps what was brought to disk: content first, then the new name."""
    done = []
    sync, replace = os.fsync, os.replace

    def synced(number):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{number}")).name))
        sync(number)

    def replaced(new, path):
        done.append(("name", Path(path).name))
        replace(new, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    durable.write_file(tmp_path / "a", lambda stream: stream.write(b"new"))
    assert done == [("sync", ".a.tmp"), ("name", "a"), ("sync", tmp_path.name)]
    done.clear()
    folder = tmp_path / "out"
    durable.write_together(folder, lambda new: (new / "b").write_text("new"))
    ready = done.index(("name", ".ready"))
    assert ("sync", "b") in done[:ready]
    assert done[ready + 1] == ("sync", "out")
    assert done.index(("name", "b")) > ready
    assert done[-1] == ("sync", "out")


def test_a_full_disk_is_told_whoever_met_it():
    """NumPy, shutil and safetensors have words of their own for it."""
    full_disk = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a")
    copied = shutil.Error([("a", "b", str(full_disk))])
    numpy, other = OSError("480 requested and 0 written"), OSError("a: odd\nb")
    for error in (full_disk, copied, numpy):
        assert durable.reason(error) == "No space left on device"
    assert durable.reason(other) == "a: odd"


def test_every_flipped_bit_and_cut_is_noticed(tmp_path):
    for name, size in (("empty", 0), ("small", 5), ("large", 3 << 20)):
        data = np.random.default_rng(size).bytes(size)
        (tmp_path / name).write_bytes(data)
    digests.write_digests(tmp_path, digests.files_of(tmp_path))
    table = digests.read_digests(tmp_path / digests.FILE)
    assert not list(digests.changed(tmp_path, table))
    for number, place in enumerate(np.linspace(0, 8 * (3 << 20) - 1, 8, dtype=int)):
        data = bytearray((tmp_path / "large").read_bytes())
        data[place // 8] ^= 1 << place % 8
        (tmp_path / "large").write_bytes(data)
        os.utime(tmp_path / "large", ns=(0, number))
        assert list(digests.changed(tmp_path, table)) == ["large is damaged"]
        data[place // 8] ^= 1 << place % 8
        (tmp_path / "large").write_bytes(data)
        assert not list(digests.changed(tmp_path, table))
    (tmp_path / "small").write_bytes(b"1234")
    (tmp_path / "empty").unlink()
    found = list(digests.changed(tmp_path, table))
    assert found == ["empty is missing", "small is damaged"]


def context(value: float) -> Context:
    vectors = np.full((2, 3), value, np.float32)
    return Context(np.arange(2), vectors, np.ones(2, bool), seed=0, model="m")


def test_a_context_is_replaced_whole_and_leaves_other_files(tmp_path, monkeypatch):
    (tmp_path / "index.npy").write_text("mine")
    context(1.0).save(tmp_path)
    plain = os.replace

    def killed(old, new):
        if Path(new).name == INFO and Path(old).parent.name == ".ready":
            raise KeyboardInterrupt
        plain(old, new)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        context(2.0).save(tmp_path)
    monkeypatch.undo()
    assert Context.load(tmp_path).hash == context(2.0).hash
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"index.npy", ARRAYS, INFO}
