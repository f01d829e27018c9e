"""Stages run once, leave nothing half-done, and say what stands in their way."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cdejax.config import DataConfig, SourceConfig
from cdejax.storage import artifacts, digests
from cdejax.storage.artifacts import (
    MANIFEST,
    artifact_fingerprint,
    fingerprint,
    hash_files,
    read_manifest,
    run_stage,
)
from cdejax.storage.digests import FILE
from cdejax.storage.lock import lock_folder


@pytest.fixture(autouse=True)
def stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of these tests' own."""
    for name in ("words", "s"):
        monkeypatch.setitem(artifacts.VERSIONS, name, 1)


class Builder:
    """A stage that writes one file and knows how often it ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.found: list[str] = []

    def __call__(self, folder: Path) -> dict[str, int]:
        self.runs += 1
        self.found = sorted(p.name for p in folder.iterdir() if p.name != ".lock")
        (folder / "part").write_text("x")
        return {"rows": 3}


def stage(root: Path, build: Callable, spec: object = 1, **options: bool) -> Path:
    return run_stage(root, "words", {"spec": spec}, build, **options)


def test_a_finished_stage_is_found_again(tmp_path: Path) -> None:
    build = Builder()
    folder = stage(tmp_path, build)
    assert stage(tmp_path, build) == folder
    assert build.runs == 1
    assert sorted(p.name for p in folder.iterdir()) == [FILE, MANIFEST, "part"]
    manifest = read_manifest(folder)
    assert manifest["counts"] == {"rows": 3}
    assert manifest["spec"] == {"spec": 1}
    assert manifest["stage_version"] == 1
    assert folder.name == f"words-{artifact_fingerprint(folder)}"
    assert [p for p in tmp_path.iterdir() if p != folder] == []


def test_another_input_or_version_of_the_code_is_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Builder()
    first, second = stage(tmp_path, build), stage(tmp_path, build, spec=2)
    monkeypatch.setitem(artifacts.VERSIONS, "words", 2)
    third = stage(tmp_path, build)
    assert len({first, second, third}) == build.runs == 3
    assert all((folder / MANIFEST).is_file() for folder in (first, second, third))


def killed(folder: Path) -> dict[str, int]:
    (folder / "left").write_text("half")
    (folder / "inner").mkdir()
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("resumable", "found"), [(False, []), (True, ["inner", "left"])]
)
def test_left_overs(resumable: bool, found: list[str], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path, killed)
    assert not list(tmp_path.glob("words-*"))
    build = Builder()
    folder = stage(tmp_path, build, resumable=resumable)
    assert build.found == found
    assert (folder / "left").exists() == resumable


def test_a_folder_without_manifest_is_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a finished artefact"):
        read_manifest(tmp_path)


def test_another_process_holds_the_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from cdejax.storage.lock import lock_folder\n"
        "with lock_folder(sys.argv[1]):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    message = rf"out: another run \(process {process.pid}\) is writing there"
    with pytest.raises(ValueError, match=message), lock_folder(tmp_path / "out"):
        pass
    process.kill()  # the lock ends with the process
    process.wait()
    process.stdout.close()
    process.stdin.close()
    with lock_folder(tmp_path / "out"):
        pass


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ValueError, match=r"cannot write there \(Permission denied\)"):
        stage(tmp_path / "out", Builder())


def test_output_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/.*cannot write there"):
        stage(tmp_path / "file", Builder())


def test_disk_full(tmp_path: Path) -> None:
    def full(folder: Path) -> dict[str, int]:
        (folder / "part").write_text("x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ValueError, match=r"words stage failed.*No space left") as error:
        stage(tmp_path, full)
    assert "Free some space" in str(error.value)
    assert not list(tmp_path.glob("words-*"))
    assert stage(tmp_path, Builder()).is_dir()


def test_fingerprint_of_values() -> None:
    config = DataConfig(sources=(SourceConfig(path="é"),))
    assert fingerprint(config) == fingerprint(DataConfig(sources=(SourceConfig("é"),)))
    assert fingerprint(config) != fingerprint(DataConfig())
    assert fingerprint({"a": 1, "b": (2,)}) == fingerprint({"b": [2], "a": np.int64(1)})
    assert fingerprint({1, 2, 3}) == fingerprint([1, 2, 3])


def test_hash_of_files_follows_names_order_and_content(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("one")
    b.write_text("two")
    first = hash_files(a, b)
    assert first == hash_files(a, b) != hash_files(b, a)
    folder = hash_files(tmp_path)
    b.rename(tmp_path / "c")
    assert hash_files(tmp_path) != folder
    a.write_text("onE")
    assert hash_files(a, tmp_path / "c") != first


def test_manifest_is_plain_json(tmp_path: Path) -> None:
    def build(_: Path) -> dict[str, object]:
        return {"n": np.int32(3), "share": np.float64(0.5), "path": tmp_path}

    folder = stage(tmp_path, build)
    counts = json.loads((folder / MANIFEST).read_text())["counts"]
    assert counts == {"n": 3, "share": 0.5, "path": str(tmp_path)}


def test_a_run_keeps_its_artefacts_through_other_code(tmp_path, monkeypatch):
    def stage(spec):
        build = lambda folder: (folder / "x").write_text("x") and {}  # noqa: E731
        return artifacts.run_stage(tmp_path, "s", spec, build)

    old = stage({"size": 1, "path": tmp_path, "pair": (1, 2.5)})
    key = artifacts.artifact_fingerprint(old)
    monkeypatch.setitem(artifacts.VERSIONS, "s", 2)
    with artifacts.keep_artifacts([key, "unknown"]):
        assert stage({"size": 1, "path": tmp_path, "pair": (1, 2.5)}) == old
        assert stage({"size": 2, "path": tmp_path, "pair": (1, 2.5)}) != old
    assert stage({"size": 1, "path": tmp_path, "pair": (1, 2.5)}) != old


@pytest.mark.parametrize("name", [MANIFEST, "part", FILE])
def test_a_flipped_bit_of_a_finished_stage_is_noticed(tmp_path: Path, name: str):
    folder = stage(tmp_path, Builder())
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 2
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{folder}: .*remove this folder") as error:
        stage(tmp_path, Builder())
    assert "\n" not in str(error.value)
    assert name in str(error.value) or name == FILE
    with pytest.raises(ValueError, match="Nothing of it is used"):
        read_manifest(folder)


def test_a_file_that_is_whole_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stage(tmp_path, Builder())
    read_manifest(folder)
    monkeypatch.setattr(digests, "digest", lambda path: pytest.fail(f"{path} again"))
    assert stage(tmp_path, Builder()) == folder


def test_a_missing_manifest_is_made_anew(tmp_path: Path) -> None:
    folder = stage(tmp_path, Builder())
    (folder / MANIFEST).unlink()
    build = Builder()
    assert stage(tmp_path, build) == folder
    assert build.runs == 1
    assert list(tmp_path.iterdir()) == [folder]
    assert read_manifest(folder)["counts"] == {"rows": 3}


def test_an_artefact_of_an_older_version_has_no_digests(tmp_path: Path) -> None:
    folder = stage(tmp_path, Builder())
    (folder / FILE).unlink()
    build = Builder()
    assert stage(tmp_path, build) == folder
    assert not build.runs
