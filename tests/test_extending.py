"""docs/extending.md: every section is applied to a copy of the package and run."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import cdejax
from tests.shared import made_once
from tests.tiny import write_encoder

ROOT = Path(cdejax.__file__).parent
PAGE = ROOT.parent / "docs" / "extending.md"
THREE_FILES = {"An objective", "A batch plan", "A source of pairs", "A measure"}
"""What takes a file of its own, the registry's and the configuration's, at most."""
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.M | re.S)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


class Section(NamedTuple):
    """What a section of the page adds, changes and runs."""

    files: dict[str, str]
    """Content by path."""
    changes: list[tuple[str, str, str]]
    """Path, lines before and lines after."""
    example: str

    @property
    def touched(self) -> set[str]:
        return {*self.files, *(path for path, *_ in self.changes)}


def hunks(diff: str) -> list[tuple[str, str, str]]:
    """A diff without line numbers: what is to be replaced stands in it."""
    found: list[tuple[str, str, str]] = []
    path, old, new = "", "", ""

    def close() -> None:
        if old or new:
            found.append((path, old, new))

    for line in diff.splitlines():
        if line.startswith(("--- ", "+++ ", "@@")):
            close()
            old = new = ""
            path = line.removeprefix("+++ b/") if line.startswith("+++ ") else path
            continue
        old += f"{line[1:]}\n" if line[:1] != "+" else ""
        new += f"{line[1:]}\n" if line[:1] != "-" else ""
    close()
    return found


def section_of(text: str) -> Section:
    files, changes = {}, []
    for language, block in _BLOCK.findall(text):
        if language == "diff":
            changes += hunks(block)
        elif language == "python":
            first, _, code = block.partition("\n")
            files[first.removeprefix("# ")] = code
    return Section(files, changes, files.pop("example.py"))


SECTIONS = {
    name: section_of(text)
    for name, text in _SECTION.findall(PAGE.read_text(encoding="utf-8"))
}


@functools.cache
def package() -> list[str]:
    return sorted(p.relative_to(ROOT.parent).as_posix() for p in ROOT.rglob("*.py"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, minilm) -> Path:
    return made_once(
        tmp_path_factory,
        "encoder-to-extend",
        lambda folder: write_encoder(folder / "encoder", minilm, positions=256),
    )


@pytest.mark.parametrize("name", SECTIONS)
def test_an_example_works_as_the_page_says(name, encoder, tmp_path):
    section = SECTIONS[name]
    shutil.copytree(ROOT, tmp_path / "cdejax")
    for path, code in section.files.items():
        assert not (tmp_path / path).exists()
        (tmp_path / path).write_text(code, encoding="utf-8")
    for path, old, new in section.changes:
        text = (tmp_path / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} does not hold once:\n{old}"
        (tmp_path / path).write_text(text.replace(old, new), encoding="utf-8")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "encoder").symlink_to(encoder / "encoder")
    (tmp_path / "work" / "example.py").write_text(section.example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path / "work",
        env=os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", SECTIONS)
def test_an_extension_touches_few_files(name):
    touched = SECTIONS[name].touched
    assert len(touched) <= (3 if name in THREE_FILES else 6)
    new = SECTIONS[name].files
    assert all((path in package()) == (path not in new) for path in touched)
    assert set(SECTIONS) >= THREE_FILES
