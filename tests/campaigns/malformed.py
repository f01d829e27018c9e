"""Gives malformed inputs to the commands: recipes, settings, data, models, arrays.

    python -m tests.campaigns.malformed --count 400

Each trial takes one malformed input (`tests/malformed.py`) and one place where a file
of its kind is read, and runs the command that reads it, in a process that serves many
trials. Good verdicts are `refused` (exit code 2, one line, no traceback) and `accepted`
(exit code 0: what was spoilt is not read, or the reader tolerates it). Others are
`traceback`, `died`, `hung` and `memory` (2 GB or more).
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.project import COMMANDS, TRAINED, Project
from tests.campaigns.records import Records, options
from tests.malformed import Item, items

_SECONDS = 120
_MEGABYTES = 2048
_SERVED = 40
"""Trials of one process; another process takes over then."""
_RECIPE = ["--config", "recipe.yaml"]
_COLLECTION = ["evaluate", *_RECIPE, "--set", "evaluation.collections=[collection]"]
_SEARCH = [
    *("search", "--model", f"{TRAINED}/export", "--documents", "corpus.txt"),
    *("--query", "photon"),
]
_MODEL_FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"),
    *("special_tokens_map.json", "added_tokens.json", "sentence_bert_config.json"),
    *("config_sentence_transformers.json", "1_Pooling/config.json"),
    *("model.safetensors.index.json",),
)


class Place(NamedTuple):
    """A file that a command reads."""

    file: str
    command: list[str]


def _run_dry(*changes: str) -> list[str]:
    settings = [part for change in changes for part in ("--set", change)]
    return ["run", *_RECIPE, "--dry-run", *settings]


PLACES: dict[str, list[Place]] = {
    "recipe.yaml": [Place("bad.yaml", ["run", "--config", "bad.yaml", "--dry-run"])],
    "json.json": [
        *(
            Place(
                f"{TRAINED}/export/{name}",
                _SEARCH,
            )
            for name in _MODEL_FILES
        ),
        *(Place(f"encoder/{name}", _run_dry()) for name in _MODEL_FILES),
        *(
            Place(f"runs/tiny/artifacts/{stage}-*/manifest.json", _run_dry())
            for stage in ("pairs", "tokens", "vectors", "clusters", "plan", "shapes")
        ),
        Place(f"{TRAINED}/run.json", COMMANDS["export"]),
        Place(f"{TRAINED}/best/best.json", COMMANDS["export"]),
        Place("context/context.json", COMMANDS["encode"]),
        Place("baked/config.json", COMMANDS["search"]),
        Place("collection/corpus.jsonl", _COLLECTION),
        Place("collection/queries.jsonl", _COLLECTION),
        Place("collection/qrels/test.tsv", _COLLECTION),
    ],
    "array.npy": [
        Place(
            "bad.npy",
            _run_dry(
                *("vectors.method=file", "vectors.queries=bad.npy"),
                "vectors.documents=bad.npy",
            ),
        ),
        Place("bad.npy", _run_dry("plan.kind=file", "plan.path=bad.npy")),
        Place("context/vectors.npy", COMMANDS["encode"]),
        Place("runs/tiny/artifacts/plan-*/epoch-0000.npy", _run_dry()),
    ],
    "pairs.jsonl": [
        Place("bad.jsonl", _run_dry("data.sources=[{path: bad.jsonl}]")),
        Place(
            "bad.jsonl",
            _run_dry("data.sources=[{path: bad.jsonl}]", "data.on_invalid=skip"),
        ),
        Place("bad.jsonl", [*COMMANDS["search"][:4], "bad.jsonl", "--query", "x"]),
    ],
    "pairs.csv": [Place("bad.csv", _run_dry("data.sources=[{path: bad.csv}]"))],
}
PLACES["vectors.npy"] = PLACES["array.npy"]


def prepare(project: Project) -> None:
    """Trains what is spoilt later, and keeps it, with a small collection beside it."""
    project.write()
    for name in ("run", "context", "bake"):
        ended = project.run(COMMANDS[name])
        if ended.code:
            raise SystemExit(f"{name} failed undisturbed: {ended.said}")
    folder = project.work / "collection"
    (folder / "qrels").mkdir(parents=True)
    for name, key in (("corpus", "d"), ("queries", "q")):
        rows = [json.dumps({"_id": f"{key}{i}", "text": f"t {i}"}) for i in range(9)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(9))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(header + judged, encoding="utf-8")
    project.keep("whole")


def combinations() -> list[tuple[Item, Place]]:
    """Every malformed input at every place of its kind."""
    found = []
    for item in items():
        if item.kind == "set":
            command = ["pairs", *_RECIPE, "--set", str(item.content)]
            found.append((item, Place("", command)))
        for place in PLACES.get(item.kind + item.suffix, []):
            found.append((item, place))
    return found


def _spoil(project: Project, item: Item, place: Place) -> None:
    for name in os.listdir(project.work):  # the working folder itself stays in place
        path = project.work / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = project.folder / "kept" / "whole"
    shutil.copytree(kept, project.work, dirs_exist_ok=True)
    if not place.file:
        return
    paths = sorted(project.work.glob(place.file)) or [project.work / place.file]
    assert isinstance(item.content, bytes)
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    paths[0].write_bytes(item.content)
    if "artifacts/" not in place.file and "--dry-run" in place.command:
        shutil.rmtree(project.work / "runs")  # read anew


def _serve(pipe: Connection, work: Path) -> None:
    """Runs the commands that come through the pipe, in this process."""
    os.chdir(work)
    from cdejax.cli.main import main

    while (arguments := pipe.recv()) is not None:
        said, code = io.StringIO(), 0
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                main(arguments)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException:
                code = -1
                said.write(traceback.format_exc())
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        pipe.send((code, said.getvalue(), used))


class _Server:
    """A process that runs commands, and is replaced where it dies or hangs."""

    def __init__(self, work: Path):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work))
        self.process.start()
        theirs.close()
        self.served = 0

    def run(self, arguments: list[str]) -> tuple[str, str]:
        """The verdict on one command, and what it said."""
        self.served += 1
        self.pipe.send(arguments)
        if not self.pipe.poll(_SECONDS):
            return "hung", ""
        try:
            code, said, megabytes = self.pipe.recv()
        except EOFError:
            return "died", ""
        if "Traceback" in said or code not in (0, 2):
            return "traceback", said
        if megabytes >= _MEGABYTES:
            return "memory", f"{megabytes} MB"
        return ("refused" if code else "accepted"), said

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def main() -> int:
    """Runs the trials asked for, drawn without repetition among those not yet run."""
    given = options(__doc__ or "", count=400)
    project = Project(given.folder / "malformed")
    if not (project.folder / "kept" / "whole").is_dir():
        prepare(project)
    records = Records(given.folder / "malformed.jsonl")
    known = {(r["kind"], r["name"], r["file"], r["command"]) for r in records.all()}
    left = combinations()
    random.Random(given.seed).shuffle(left)
    server, count = _Server(project.work), 0
    for item, place in left:
        command = " ".join(place.command[:2] + place.command[4:])[:300]
        name = (item.kind + item.suffix, item.name, place.file, command)
        if name in known or count == given.count:
            continue
        count += 1
        _spoil(project, item, place)
        if server.served == _SERVED or not server.process.is_alive():
            server.stop()
            server = _Server(project.work)
        verdict, said = server.run(place.command)
        if verdict in ("hung", "memory"):
            server.stop()
        told = dict(zip(("kind", "name", "file", "command"), name, strict=True))
        records.add(verdict, seed=given.seed, said=said.strip()[-600:], **told)
    server.stop()
    return records.conclude(good=["refused", "accepted"])


if __name__ == "__main__":
    sys.exit(main())
