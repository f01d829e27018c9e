"""Runs one recipe with the code of two commits and compares every file that they leave.

    python -m tests.campaigns.commits main~3 main --recipe configs/quickstart.yaml

Without a recipe, every command that writes runs on a tiny project. Manifests, digests
and TensorBoard files are left out; fingerprints, commits and times do not count, and
checkpoints count by their arrays. Files and settings of recipes that only one of the
commits knows are listed apart, with a `+`. What is compared stays in
`runs/campaigns/commits/`.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.campaigns.project import (
    COMMANDS,
    UNCOMPARED,
    Project,
    arrays_digest,
    results_below,
    timeless,
)

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = {"manifest.json", "run.json", *UNCOMPARED} - {"metrics.jsonl"}
_TEXT = {".json", ".jsonl", ".md", ".yaml", ".txt"}
_HASH = re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{8,64}\b")


def run_commit(commit: str, folder: Path, recipe: Path | None) -> Path:
    """Runs the commands with the code of a commit; the folder of what they left.

    All commits have their code and work under the same paths, which some files name.
    """
    code = folder.resolve() / "code"
    shutil.rmtree(code, ignore_errors=True)
    subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
    adding = ["git", "worktree", "add", "--quiet", "--detach", str(code), commit]
    subprocess.run(adding, cwd=ROOT, check=True)
    _check_imported(code)
    project = Project(folder)
    shutil.rmtree(project.work, ignore_errors=True)
    commands = COMMANDS
    if recipe is None:
        project.write()
    else:
        project.work.mkdir(parents=True)
        shutil.copy(recipe, project.work / "recipe.yaml")
        commands = {"run": ["run", "--config", "recipe.yaml"]}
    for name, arguments in commands.items():
        ended = project.run(arguments, environment={"PYTHONPATH": str(code)})
        sys.stdout.write(f"{commit} {name}: {ended.seconds:.1f} s\n")
        sys.stdout.flush()
        if ended.code:
            raise SystemExit(f"{commit}: {name} failed: {ended.said}")
    left = folder / "left" / commit
    shutil.rmtree(left, ignore_errors=True)
    left.parent.mkdir(exist_ok=True)
    project.work.rename(left)
    subprocess.run(["git", "worktree", "remove", "--force", str(code)], cwd=ROOT)
    return left


def _check_imported(code: Path) -> None:
    """Refuses to go on if commands would run other code, such as an installed one."""
    asking = [sys.executable, "-c", "import cdejax; print(cdejax.__file__)"]
    environment = os.environ | {"PYTHONPATH": str(code)}
    said = subprocess.run(
        asking, cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    if not Path(said.stdout.strip()).is_relative_to(code):
        raise SystemExit(f"{said.stdout.strip()} is imported instead of {code}")


def contents(folder: Path) -> dict[str, list[Any]]:
    """What each file holds, by its relative path without fingerprints.

    Folders that differ in their fingerprint alone share a name: theirs is a list.
    """
    found = collections.defaultdict(list)
    for path in results_below(folder, _LEFT_OUT):
        name = _HASH.sub("#", path.relative_to(folder).as_posix())
        found[name].append(_content(path))
    return {name: sorted(held, key=repr) for name, held in found.items()}


def _content(path: Path) -> Any:
    if path.is_dir():
        return arrays_digest(path)
    if path.suffix not in _TEXT:
        return hashlib.blake2b(path.read_bytes()).hexdigest()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        return _without_hashes(yaml.safe_load(text))
    if path.suffix == ".json":
        return _without_hashes(timeless(json.loads(text)))
    if path.suffix == ".jsonl":
        return [_without_hashes(timeless(json.loads(x))) for x in text.splitlines()]
    # A model card shows its recipe, whose settings are compared one by one.
    before, _, rest = text.partition("```yaml\n")
    recipe, _, after = rest.partition("```")
    text = _HASH.sub("#", before + after)
    return {"text": text, "recipe": _without_hashes(yaml.safe_load(recipe))}


def _without_hashes(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_hashes(k): _without_hashes(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_hashes(v) for v in value]
    return _HASH.sub("#", value) if isinstance(value, str) else value


def differences(ours: Any, theirs: Any, place: str) -> list[str]:
    """Places at which two values differ; `+` marks a key that one of them lacks."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted(ours.keys() | theirs.keys(), key=str):
            inner = f"{place}: {key}" if ":" not in place else f"{place}.{key}"
            if key in ours and key in theirs:
                found += differences(ours[key], theirs[key], inner)
            else:
                found.append(f"+ {inner}")
        return found
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [x for i, p in pairs for x in differences(*p, f"{place}[{i}]")]
    return [] if ours == theirs else [place]


def _new_file_or_setting(place: str) -> bool:
    file, _, key = place.removeprefix("+ : ").partition("[")
    return not key or "recipe." in key or file.endswith(".yaml")


def main() -> int:
    """Compares the commits; 1 if any file differs in more than settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--recipe", type=Path, help="default: a tiny project")
    parser.add_argument("--folder", type=Path, default=Path("runs/campaigns/commits"))
    given = parser.parse_args()
    both = [
        contents(run_commit(commit, given.folder, given.recipe))
        for commit in (given.before, given.after)
    ]
    files = sum(map(len, both[1].values()))
    before, after = both
    found = differences(before, after, "")
    added = [x for x in found if x.startswith("+ ") and _new_file_or_setting(x)]
    other = [place for place in found if place not in added]
    for place in (*added, *other):
        sys.stdout.write(f"{place}\n")
    sys.stdout.write(
        f"{files} files: {len(other)} differences, and {len(added)} files or settings "
        "in recipes that one commit lacks\n"
    )
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
