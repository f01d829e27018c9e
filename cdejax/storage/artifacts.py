"""Artefact folders: the outputs of stages, which run only if their inputs changed.

A stage is a function from a configuration and input artefacts to one folder. The folder
is named after a fingerprint of everything that decides its content, so an unchanged
stage finds its folder again, and a changed one never overwrites another. A stage writes
under a temporary name and renames: a killed stage leaves nothing incomplete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from cdejax.runtime.processes import is_main, process
from cdejax.storage import digests, durable, guarded
from cdejax.storage.hashing import file_hash
from cdejax.storage.lock import lock_folder

MANIFEST = "manifest.json"
RUN = "run.json"
"""In the folder of a training run: its recipe and the artefacts that it uses."""
IN_SIGHT_SECONDS = 60
"""How long a file of process 0 may take to become visible on other hosts."""
_MAX_JSON = 1 << 33
"""Maximum size of our JSON files in bytes, enough for ids of millions of texts."""
VERSIONS = {
    "pairs": 1,
    "tfds": 1,
    "tokens": 2,
    "vectors": 2,
    "clusters": 1,
    "plan": 1,
    "shapes": 1,
    "hardness": 1,
    "training": 1,
    "evaluation": 2,
}
"""Version of each stage's code, and of how its dependencies are recorded.

Increment it with every change after which a stage writes something else for the same
inputs, so that the stage runs again; `tests/test_golden.py` detects such changes.
"""
_kept: ContextVar[tuple[str, ...]] = ContextVar("kept", default=())


def jsonable(value: Any) -> Any:
    """Converts dataclasses, paths, tuples and NumPy scalars to plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: jsonable(getattr(value, f.name)) for f in fields}
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [jsonable(v) for v in items]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    return value


def fingerprint(value: Any) -> str:
    """Hash (16 hex digits) of a value's canonical JSON form."""
    text = json.dumps(jsonable(value), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def hash_files(*paths: str | Path) -> str:
    """Hash (16 hex digits) of the contents of files, in the given order.

    A folder stands for all of its files, by name. A process reads a file only once
    unless it has changed.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in map(Path, paths):
        folder = path.is_dir()
        files = sorted(p for p in path.rglob("*") if p.is_file()) if folder else [path]
        for file in files:
            name = file.relative_to(path) if folder else file.name
            digest.update(f"{name}\0{file_hash(file)}\0".encode())
    return digest.hexdigest()


def write_json(path: str | Path, value: Any) -> None:
    """Writes JSON atomically (see `durable.write_file`)."""
    text = json.dumps(jsonable(value), indent=2, ensure_ascii=False) + "\n"
    durable.write_file(path, lambda stream: stream.write(text.encode()))


def read_json(path: str | Path) -> Any:
    """Reads a file of `write_json`; ValueError if it is missing or damaged."""
    try:
        return guarded.read_json(path, _MAX_JSON)
    except ValueError as error:
        raise _damaged(path, error) from None


def load_array(path: str | Path) -> Shaped[np.ndarray, "..."]:
    """Memory-maps one of our .npy files; ValueError if it is missing or damaged."""
    try:
        return guarded.open_npy(path)
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path: str | Path, error: ValueError) -> ValueError:
    reason = str(error).removeprefix(f"{path}: ")
    return ValueError(
        f"{path}: missing or damaged ({reason}). Put it back from a copy, or move the "
        "folder that it belongs to away and run the command again."
    )


def explain_os_error(error: OSError) -> str:
    """Describes an error of the operating system and how to fix it."""
    reason = durable.reason(error)
    what = f"{error.filename}: {reason}" if error.filename else reason
    if error.errno == errno.EDQUOT or reason == durable.FULL:
        return f"{what}. Free some space or choose another `output` folder."
    return f"{what}. Check that it is there and may be read and written."


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Reads an artefact's manifest, after checking the digests of its files.

    A process checks every file once (of several processes only process 0), so that
    files opened later are those that the stage wrote.

    Raises:
      ValueError: the folder is not an artefact, or one of its files is damaged.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder}: not a finished artefact (no {MANIFEST}). "
            "Run the stage that writes it, or give another folder."
        )
    if is_main():
        _check_digests(Path(folder))
    manifest = read_json(path)
    if not isinstance(manifest, dict):
        raise _damaged(path, ValueError("no JSON object"))
    parts = (("fingerprint", str), ("spec", dict), ("counts", dict))
    if missing := [
        name for name, kind in parts if not isinstance(manifest.get(name), kind)
    ]:
        raise _damaged(path, ValueError(f"no `{missing[0]}` in it"))
    return manifest


def _check_digests(folder: Path) -> None:
    """Raises ValueError if a file has changed; older artefacts have no digests."""
    path = folder / digests.FILE
    if not path.is_file():
        return
    try:
        changed = ", ".join(digests.changed(folder, digests.read_digests(path)))
        found = f"{changed} since the stage ended" if changed else ""
    except ValueError as error:
        found = str(error).removeprefix(f"{folder}/")
    if found:
        raise ValueError(
            f"{folder}: {found}. Nothing of it is used: remove this folder, so that "
            "the stage runs again."
        )


def run_stage(
    root: str | Path,
    stage: str,
    spec: Mapping[str, Any],
    build: Callable[[Path], Mapping[str, Any]],
    *,
    resumable: bool = False,
) -> Path:
    """Returns the folder of a finished stage, which runs only if necessary.

    Of several processes only process 0 runs stages: see `processes.main_first`.

    Args:
      root: folder that holds all artefacts of a project.
      stage: the stage's name, one of `VERSIONS`; the folder is called
        `stage-FINGERPRINT`.
      spec: everything that decides the content (configuration, seeds, fingerprints of
        the inputs); written to the manifest.
      build: writes the content into the folder it is given and returns counts (rows,
        truncations, drops, …) for the manifest.
      resumable: `build` can continue from what a killed run left in the folder, which
        is otherwise removed first.

    Raises:
      ValueError: the folder cannot be written, another process is writing it, or this
        process cannot see the folder of process 0.
    """
    if (kept := _kept_folder(Path(root), stage, spec)) is not None:
        return kept
    key = fingerprint({"stage": stage, "spec": spec, "version": VERSIONS[stage]})
    folder = Path(root) / f"{stage}-{key}"
    if _finished(folder, key):
        return folder
    if not is_main():
        if wait_for_file(folder / MANIFEST) and _finished(folder, key):
            return folder
        raise _made_elsewhere(folder)
    partial = Path(root) / f".{folder.name}.partial"
    with lock_folder(partial):
        if _finished(folder, key):  # while we waited for the lock
            shutil.rmtree(partial)
            return folder
        if not resumable:
            _clear_folder(partial)
        try:
            counts = build(partial)
            manifest = {
                "stage": stage,
                "stage_version": VERSIONS[stage],
                "fingerprint": key,
                "spec": spec,
                "counts": counts,
                "version": metadata.version("cdejax"),
                "created": datetime.datetime.now()
                .astimezone()
                .isoformat("T", "seconds"),
            }
            write_json(partial / MANIFEST, manifest)
            digests.write_digests(partial, digests.files_of(partial))
            durable.sync_tree(partial)
            _publish(partial, folder)
        except OSError as error:
            raise ValueError(
                f"{partial}: the {stage} stage failed: {explain_os_error(error)}"
            ) from error
    return folder


def _publish(partial: Path, folder: Path) -> None:
    """Renames a finished folder; replaces one of that name without a manifest."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
        shutil.rmtree(old, ignore_errors=True)
    durable.replace(partial, folder)  # locked until now: another run cannot empty it
    (folder / ".lock").unlink()


def wait_for_file(path: Path) -> bool:
    """Waits until a file of process 0 is visible; returns whether it is.

    Network file systems may cache for a while that it did not exist.
    """
    deadline = time.monotonic() + IN_SIGHT_SECONDS
    while not path.is_file() and time.monotonic() < deadline:
        time.sleep(0.5)
    return path.is_file()


def _made_elsewhere(folder: Path) -> ValueError:
    return ValueError(
        f"{folder}: process 0 has made it, but process {process()} does not see it. "
        "`output` must be on a file system that all hosts share, and recipe, source "
        "files and the cdejax package must be the same on all of them."
    )


@contextlib.contextmanager
def keep_artifacts(fingerprints: Iterable[str]) -> Iterator[None]:
    """Makes stages accept these artefacts, whatever version of their code made them.

    So a run in progress keeps its artefacts when the package is upgraded. Other
    settings, seeds or inputs still make new artefacts.
    """
    token = _kept.set(tuple(sorted(fingerprints)))
    try:
        yield
    finally:
        _kept.reset(token)


def begun_with(run_folder: str | Path) -> set[str]:
    """Fingerprints of the artefacts that a run uses.

    Empty if there is no run, or one of another version, which cannot be continued.
    """
    path = Path(run_folder) / RUN
    held = read_json(path) if path.is_file() else None
    if not isinstance(held, dict) or held.get("version") != VERSIONS["training"]:
        return set()
    recipe = held.get("recipe")
    names = recipe.get("artefacts") if isinstance(recipe, dict) else None
    values = names.values() if isinstance(names, dict) else ()
    return {value for value in values if isinstance(value, str)}


def _kept_folder(root: Path, stage: str, spec: Mapping[str, Any]) -> Path | None:
    """An artefact of `keep_artifacts` that was made from the same `spec`, if any."""
    wanted = json.loads(json.dumps(jsonable(spec)))
    for key in _kept.get():
        folder = root / f"{stage}-{key}"
        if _finished(folder, key) and read_manifest(folder)["spec"] == wanted:
            return folder
    return None


def _finished(folder: Path, key: str) -> bool:
    """Whether the folder is a finished artefact; ValueError if it is another's."""
    if not (folder / MANIFEST).is_file():
        return False
    found = read_manifest(folder).get("fingerprint")
    if found != key:
        raise ValueError(
            f"{folder}: its {MANIFEST} was edited (fingerprint {found}, not {key}). "
            "Remove the folder, so that the stage runs again."
        )
    return True


def artifact_fingerprint(folder: str | Path) -> str:
    """The fingerprint of a finished artefact, on which later stages depend."""
    return read_manifest(folder)["fingerprint"]


def _clear_folder(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == ".lock":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
