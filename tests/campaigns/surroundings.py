"""Runs a tiny recipe where things are not as usual: each surrounding one verdict.

    python -m tests.campaigns.surroundings

Needs root for two of them (a small and a read-only file system are mounted).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.campaigns.project import COMMANDS, Project, differing, digests
from tests.campaigns.records import Records, options

_RUN = COMMANDS["run"]
_WHOLE = "whole"
_TELLS_OUTPUT = ("README.md", "cdejax.json")
"""Files of an export with the recipe, and so with the folder of its run."""


class _Unexpected(Exception):
    """What was seen instead of what should have been."""


def _expect(condition: bool, said: str) -> None:
    if not condition:
        raise _Unexpected(said[-2000:])


def _finished(project: Project, **environment: str) -> None:
    """The recipe runs to its end and leaves what the undisturbed run left."""
    ended = project.run(_RUN, environment=environment)
    _expect(ended.code == 0, ended.said)
    kept = project.folder / "kept" / _WHOLE
    found = differing(digests(project.work), digests(kept))
    _expect(not found, f"differs: {found}")


def _refused(project: Project, *words: str) -> None:
    """The recipe ends in one line and exit code 2."""
    ended = project.run(_RUN)
    _expect(ended.code == 2 and "Traceback" not in ended.said, ended.said)
    _expect(ended.said.count("cdejax: error: ") == 1, ended.said)
    for word in words:
        _expect(word in ended.said, ended.said)


def two_runs_into_one_folder(project: Project) -> None:
    """The second is refused, the first ends as if alone."""
    project.restore("empty")
    first = project.start(_RUN)
    time.sleep(8)
    _refused(project, "another run")
    _expect(first.wait(900) == 0, "the first run failed")
    kept = project.folder / "kept" / _WHOLE
    found = differing(digests(project.work), digests(kept))
    _expect(not found, f"differs: {found}")


def full_disk(project: Project) -> None:
    """One line says so; with more room, the run ends as if nothing had been."""
    project.restore("empty")
    runs = project.work / "runs"
    runs.mkdir()
    for megabytes in (1, 2, 4):
        with _mounted(runs, f"size={megabytes}m"):
            _refused(project, "No space left on device")
    with _mounted(runs, "size=500m"):
        _finished(project)


def read_only(project: Project) -> None:
    """A folder that cannot be written is named."""
    project.restore("empty")
    runs = project.work / "runs"
    runs.mkdir()
    with _mounted(runs, "ro"):
        _refused(project, "runs")


def moved_folder(project: Project) -> None:
    """A finished run that was moved is found finished."""
    project.restore(_WHOLE)
    moved = project.folder / "moved"
    shutil.rmtree(moved, ignore_errors=True)
    (project.work / "runs").rename(moved)
    before = digests(moved)
    ended = project.run([*_RUN, "--set", f"output={moved}"])
    _expect(ended.code == 0, ended.said)
    found = [
        name
        for name in differing(digests(moved), before)
        if "report" not in name and Path(name).name not in _TELLS_OUTPUT
    ]
    _expect(not found, f"made anew: {found}")


def names_beyond_ascii(project: Project) -> None:
    """Folders and recipes may have any name."""
    project.restore("empty")
    folder = project.work / "Ordner mit Umlauten äöü 文書"
    folder.mkdir()
    (project.work / "recipe.yaml").rename(folder / "Rezept ß.yaml")
    recipe = ["--config", str(folder / "Rezept ß.yaml")]
    ended = project.run(["run", *recipe, "--set", f"output={folder / 'läufe'}"])
    _expect(ended.code == 0, ended.said)


def language_c(project: Project) -> None:
    """LANG=C, and no UTF-8 mode."""
    project.restore("empty")
    _finished(project, LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")


def no_home(project: Project) -> None:
    """HOME names no folder."""
    project.restore("empty")
    _finished(project, HOME="/nonexistent")


@contextlib.contextmanager
def _mounted(folder: Path, how: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


SURROUNDINGS: dict[str, Callable[[Project], None]] = {
    function.__name__: function
    for function in (
        *(two_runs_into_one_folder, full_disk, read_only, moved_folder),
        *(names_beyond_ascii, language_c, no_home),
    )
}


def main() -> int:
    """Tries the surroundings in turn, as many as asked for."""
    given = options(__doc__ or "", count=len(SURROUNDINGS))
    project = Project(given.folder / "surroundings")
    if not (project.folder / "kept" / _WHOLE).is_dir():
        project.write()
        project.keep("empty")
        ended = project.run(_RUN)
        if ended.code:
            raise SystemExit(f"run failed undisturbed: {ended.said}")
        project.keep(_WHOLE)
    records = Records(given.folder / "surroundings.jsonl")
    begun = len(records.all())
    for number in range(begun, begun + given.count):
        name, attempt = list(SURROUNDINGS.items())[number % len(SURROUNDINGS)]
        try:
            attempt(project)
        except _Unexpected as error:
            records.add("unexpected", surrounding=name, said=str(error))
        else:
            records.add("as expected", surrounding=name)
    return records.conclude(good=["as expected"])


if __name__ == "__main__":
    sys.exit(main())
