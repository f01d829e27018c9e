"""Flips single bits in every kind of file that is written, and uses what was spoilt.

    python -m tests.campaigns.flips --count 20

Each trial restores a finished project, flips one random bit in one file, removes what
was made from it, makes it again, and compares. Good verdicts are `noticed` (an error,
or a warning that names the damage), and `harmless` (all results are equal to those of
the undamaged project: the proof). Everything else is `silent`.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import sys
from pathlib import Path

from tests.campaigns.project import COMMANDS, TRAINED, Project, differing, digests
from tests.campaigns.records import Records, options

_RUN = COMMANDS["run"]
_DOWNSTREAM = ("runs/tiny/artifacts/evaluation-*", "runs/tiny/report")
_UNTRAINED = (*_DOWNSTREAM, "runs/tiny/plain", "runs/tiny/contextual")
_EXPORTS = ("runs/tiny/*/export",)
_WORDS = ("damage", "digest", "changed", "cannot be read", "does not match", "edited")
"""One of them is in a warning that tells of damage."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Files to spoil, what to remove before they are used again, and by what."""

    files: str
    removed: tuple[str, ...]
    commands: tuple[list[str], ...]


KINDS = {
    **{
        stage: Kind(f"runs/tiny/artifacts/{stage}-*/**/*", (*_UNTRAINED,), (_RUN,))
        for stage in ("pairs", "tokens", "vectors", "clusters", "plan", "shapes")
    },
    "evaluation": Kind(
        "runs/tiny/artifacts/evaluation-*/**/*", ("runs/tiny/report",), (_RUN,)
    ),
    "checkpoints": Kind(
        f"{TRAINED}/checkpoints/**/*",
        (*_DOWNSTREAM, *_EXPORTS, f"{TRAINED}/best"),
        (_RUN,),
    ),
    "best": Kind(f"{TRAINED}/best/**/*", (*_DOWNSTREAM, *_EXPORTS), (_RUN,)),
    "run": Kind(f"{TRAINED}/run.json", (*_DOWNSTREAM, *_EXPORTS), (_RUN,)),
    "export": Kind(f"{TRAINED}/export/**/*", ("vectors.npy",), (COMMANDS["encode"],)),
    "context": Kind("context/**/*", ("vectors.npy",), (COMMANDS["encode"],)),
    "baked": Kind("baked/**/*", ("found.jsonl",), (COMMANDS["search"],)),
    "report": Kind("runs/tiny/report/**/*", (), (COMMANDS["report"],)),
}


def prepare(project: Project) -> None:
    """Runs all that is spoilt later, and keeps it."""
    project.write()
    for name in ("run", "context", "bake", "encode", "search"):
        ended = project.run(COMMANDS[name])
        if ended.code:
            raise SystemExit(f"{name} failed undisturbed: {ended.said}")
    project.keep("whole")


def trial(project: Project, kind: Kind, rng: random.Random) -> tuple[str, dict]:
    """Flips one bit; the verdict, and what there is to say of it."""
    project.restore("whole")
    whole = digests(project.work)
    files = [p for p in sorted(project.work.glob(kind.files)) if _has_bits(p)]
    file = rng.choice(files)
    bit = rng.randrange(file.stat().st_size * 8)
    for pattern in kind.removed:
        for path in project.work.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    _flip(file, bit)
    told = {"file": str(file.relative_to(project.work)), "bit": bit}
    for command in kind.commands:
        ended = project.run(command)
        if "Traceback" in ended.said or ended.code not in (0, 2):
            return "traceback", {**told, "said": ended.said[-2000:]}
        if ended.code == 2:
            return "noticed", {**told, "said": ended.said.strip()[-300:]}
    told["files"] = differing(digests(project.work), whole)[:20]
    if any(word in ended.said for word in _WORDS):
        return "noticed", told
    others = [name for name in told["files"] if not told["file"].startswith(name)]
    return ("silent" if others else "harmless"), told


def _has_bits(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0 and path.name != ".lock"


def _flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def main() -> int:
    """Runs the trials asked for, the kinds of files in turn."""
    given = options(__doc__ or "", count=20)
    project = Project(given.folder / "flips")
    if not (project.folder / "kept" / "whole").is_dir():
        prepare(project)
    records = Records(given.folder / "flips.jsonl")
    rng, names = random.Random(given.seed), list(KINDS)
    begun = len(records.all())
    for number in range(begun, begun + given.count):
        name = names[number % len(names)]
        verdict, told = trial(project, KINDS[name], rng)
        records.add(verdict, seed=given.seed, kind=name, **told)
    return records.conclude(good=["noticed", "harmless"])


if __name__ == "__main__":
    sys.exit(main())
