"""Kills every command at random moments, runs it again and compares what is left.

    python -m tests.campaigns.kills --count 20

Each trial restores the state before a command, starts it, sends SIGKILL after a random
part of the time that it takes, runs it again to its end and compares every result with
that of a run which nobody disturbed. Trials accumulate in `kills.jsonl`.
"""

from __future__ import annotations

import json
import random
import sys

from tests.campaigns.project import COMMANDS, Project, differing, digests
from tests.campaigns.records import Records, options


def prepare(project: Project) -> None:
    """Runs all commands undisturbed, and keeps the state before and after each."""
    project.write()
    for name, arguments in COMMANDS.items():
        if name == "run":
            project.keep("now")
            project.restore("before-pairs")
        project.keep(f"before-{name}")
        ended = project.run(arguments)
        if ended.code:
            raise SystemExit(f"{name} failed undisturbed: {ended.said}")
        left = {"seconds": ended.seconds, "digests": digests(project.work)}
        file = project.folder / f"after-{name}.json"
        file.write_text(json.dumps(left), encoding="utf-8")
        if name == "run":
            project.restore("now")


def trial(project: Project, name: str, rng: random.Random) -> tuple[str, dict]:
    """Kills one command once; the verdict, and what there is to say of it."""
    file = project.folder / f"after-{name}.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    project.restore(f"before-{name}")
    moment = rng.uniform(0, 1.05) * whole["seconds"]
    killed = project.run(COMMANDS[name], kill_after=moment)
    again = project.run(COMMANDS[name])
    told = {
        "command": name,
        "after": round(moment, 2),
        "ended_before": killed.code == 0,
    }
    if again.code:
        return "failed", {**told, "said": again.said[-2000:]}
    if found := differing(digests(project.work), whole["digests"]):
        return "differs", {**told, "files": found[:20]}
    return "equal", told


def main() -> int:
    """Runs the trials asked for, the commands in turn."""
    given = options(__doc__ or "", count=20)
    project = Project(given.folder / "kills")
    if not (project.folder / f"after-{list(COMMANDS)[-1]}.json").is_file():
        prepare(project)
    records = Records(given.folder / "kills.jsonl")
    rng, names = random.Random(given.seed), list(COMMANDS)
    begun = len(records.all())
    for number in range(begun, begun + given.count):
        verdict, told = trial(project, names[number % len(names)], rng)
        records.add(verdict, seed=given.seed, **told)
    return records.conclude(good=["equal"])


if __name__ == "__main__":
    sys.exit(main())
