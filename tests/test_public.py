"""The public surface: names that packages list, the version, types, paths in pages."""

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import cdejax

ROOT = Path(__file__).parent.parent
PACKAGES = [
    "cdejax",
    "cdejax.clustering",
    "cdejax.data",
    "cdejax.embedding",
    "cdejax.export",
    "cdejax.models",
    "cdejax.retrieval",
    "cdejax.training",
]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
NAMED = re.compile(r"^- (`.+?`): \S.*", re.M)
"""A line of a package's docstring: one or two names and what they are."""
DOTTED = re.compile(r"(?<![\w./-])cdejax(?:\.[A-Za-z_]\w*)+")
BLOCK = re.compile(r"^```.*?^```$", re.M | re.S)
FILE = re.compile(r"(?<![\w.])cdejax(?:/\w+)+(?:\.py)?")


def listed(package: str) -> list[str]:
    doc = importlib.import_module(package).__doc__ or ""
    return [
        name for line in NAMED.findall(doc) for name in re.findall(r"`(.+?)`", line)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_listed_names_exist(package):
    assert len(listed(package)) > 3
    for name in listed(package):
        assert pkgutil.resolve_name(f"{package}.{name}") is not None


def test_the_package_offers_what_it_lists():
    assert set(cdejax.__all__) - {"__version__"} <= set(listed("cdejax"))
    assert set(cdejax.__all__) <= set(dir(cdejax))
    for name in cdejax.__all__:
        assert getattr(cdejax, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cdejax.nothing  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing_slow():
    code = "import sys, cdejax; print({'jax', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_the_version_is_the_project_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cdejax.__version__ == project["version"]


def test_the_wheel_says_that_it_is_typed(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "cdejax/py.typed" in archive.namelist()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_files_that_pages_name_exist(page):
    text = page.read_text(encoding="utf-8")
    if page.name == "extending.md":  # its code adds files: see test_extending.py
        text = BLOCK.sub("", text)
    for name in set(DOTTED.findall(text)):
        assert pkgutil.resolve_name(name) is not None
    for name in set(FILE.findall(text)):
        assert (ROOT / name).exists(), name
