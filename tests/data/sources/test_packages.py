"""Docstring → function pairs of installed packages."""

import pytest

from cdejax.config import SourceConfig
from cdejax.data.rows import Row
from cdejax.data.sources import packages, read_source
from cdejax.data.sources.packages import (
    distribution_files,
    function_pairs,
    package_versions,
    read_packages,
)

MODULE = '''
import os

class Thing:
    @property
    def size(self):
        """Number of things that

        lie in the box."""
        return 1

    @staticmethod
    def count(items, start=0):
        """
        Counts the items   that are
        really there.

        Args:
          items: many.
        """

        total = start
        return total + len(items)

def outer(x):
    """Returns a function that adds x."""
    def inner(y):
        """Adds the number that outer was given."""
        y = y + 1
        return x + y
    return inner

def abstract(x):
    """Does nothing at all in here."""
    raise NotImplementedError(
        "later"
    )

def one_line(): "docstring of four words"; return 1

def short(x):
    """Too short."""
    x = 1
    return x
'''


def test_function_pairs() -> None:
    pairs = list(function_pairs(MODULE))
    assert [query for _, query, _ in pairs] == [
        "Counts the items that are really there.",
        "Returns a function that adds x.",
        "Adds the number that outer was given.",
    ]
    line, _, document = pairs[0]
    assert MODULE.split("\n")[line - 1].strip() == "def count(items, start=0):"
    assert document == (
        "def count(items, start=0):\n    total = start\n    return total + len(items)"
    )


@pytest.mark.parametrize("text", ["def f(:", "print 'x'", "x = '\0'"])
def test_source_that_does_not_parse_gives_nothing(text: str) -> None:
    assert list(function_pairs(text)) == []


@pytest.fixture
def small_stdlib(monkeypatch: pytest.MonkeyPatch) -> None:
    files = packages.stdlib_files()[:60]
    monkeypatch.setattr(packages, "stdlib_files", lambda: list(files))


@pytest.mark.usefixtures("small_stdlib")
def test_pairs_are_deterministic_and_unique() -> None:
    first, again = (
        [row for row in read_packages(["rich"]).rows if isinstance(row, Row)]
        for _ in range(2)
    )
    assert first == again
    pairs = [(row.value["query"], row.value["document"]) for row in first]
    assert len(set(pairs)) == len(pairs) > 300
    assert {row.value["domain"] for row in first} == {"stdlib", "rich"}
    for query, document in pairs:
        assert query.strip() == query
        assert document.startswith(("def ", "async def "))


@pytest.mark.usefixtures("small_stdlib")
def test_the_configured_domain_replaces_the_package(tmp_path) -> None:
    from cdejax.config import DataConfig
    from cdejax.data.pairs import Pairs, build_pairs

    source = SourceConfig(path="python-packages", domain="code")
    counts = build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "out")
    assert Pairs.open(tmp_path / "out").domains == ["code"]
    assert set(counts["sources"][0]["packages"]) == {"python"}


def test_tests_and_vendored_copies_are_left_out() -> None:
    names = [source.name for source in distribution_files("pip")]
    assert names == sorted(names)
    assert not any("_vendor" in name for name in names)
    stdlib = [source.name for source in packages.stdlib_files()]
    assert "json/decoder.py" in stdlib
    assert not any(name.startswith(("test/", "site-packages/")) for name in stdlib)


def test_versions_name_python_and_every_package() -> None:
    from importlib import metadata

    versions = package_versions(["numpy"])
    assert list(versions) == ["python", "numpy"]
    assert versions["numpy"] == metadata.version("numpy")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["not-a-package-here"], "'not-a-package-here' is not installed.*pip install"),
        (["numpy", "numpy"], "named twice"),
        (["cdejax"], "our own package"),
    ],
)
def test_wrong_packages(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_packages(names)


def test_columns_do_not_apply() -> None:
    from cdejax.config import ColumnsConfig

    source = SourceConfig(path="python-packages", columns=ColumnsConfig(query="q"))
    with pytest.raises(ValueError, match="fixed layout"):
        read_source(source)
