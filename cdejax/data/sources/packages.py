"""Pairs from installed Python packages: docstring → function body.

This is real text available in every Python environment: no download, and equal rows for
equal versions. Source code is parsed, never imported or run.
"""

from __future__ import annotations

import ast
import platform
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Self

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.rows import Reading, Row
from cdejax.data.sources.base import Source, fixed_layout

STDLIB = "stdlib"
OURS = "cdejax"
MIN_WORDS = 4
"""Minimum number of words of a docstring's first paragraph to be a query."""
MIN_LINES = 2
"""Minimum number of lines of code below a function's signature."""
_SKIPPED_FOLDERS = {
    *("test", "tests", "testing", "idle_test", "__pycache__", "site-packages"),
    *("dist-packages", "_vendor", "_vendored", "vendor", "vendored", "externals"),
    *("extern", "third_party", "turtledemo", "ensurepip"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class PythonFile(NamedTuple):
    """A Python file of a package."""

    domain: str
    name: str
    """Path relative to the package's root, with forward slashes."""
    path: Path


@dataclass(frozen=True)
class PythonPackages(Source):
    """`python-packages`: the standard library and `packages`."""

    forms = ("`python-packages`",)

    @classmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The source, for the path `python-packages`."""
        return cls(config) if config.path == "python-packages" else None

    def read(self) -> Reading:
        """Finds the packages' files; their columns are fixed."""
        return fixed_layout(self.config, read_packages(self.config.packages))

    def fingerprint(self) -> dict[str, str]:
        """Versions of Python and of the packages."""
        return package_versions(self.config.packages)


def read_packages(packages: Sequence[str]) -> Reading:
    """Pairs of the standard library and the named distributions, in that order.

    Query: the docstring's first paragraph on one line. Document: the function's source
    without its docstring, dedented. Domain: the distribution's name, or `stdlib`.
    Duplicate pairs count once, for the first package that has them. Tests, vendored
    copies of other projects and cdejax itself are left out.

    Raises:
      ValueError: a distribution is not installed or has no Python source.
    """
    versions = package_versions(packages)
    files = stdlib_files()
    for name in packages:
        files += distribution_files(name)
    columns = ColumnsConfig(domain="domain")
    return Reading(_rows(files), columns, facts={"packages": versions})


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of each distribution, which determine the pairs.

    Raises:
      ValueError: a distribution is not installed, is named twice, or is cdejax itself.
    """
    versions = {"python": platform.python_version()}
    for name in packages:
        if name == OURS or name in versions:
            raise ValueError(
                f"python-packages: {name!r} is our own package or named twice; "
                "take it out of `packages`."
            )
        versions[name] = _distribution(name).version
    return versions


def stdlib_files() -> list[PythonFile]:
    """The standard library's Python files, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.py"))
    return [PythonFile(STDLIB, name, root / name) for name in names if _wanted(name)]


def distribution_files(name: str) -> list[PythonFile]:
    """A distribution's Python files, sorted by name."""
    distribution = _distribution(name)
    names = {file.as_posix() for file in distribution.files or ()}
    names = sorted(n for n in names if n.endswith(".py") and _wanted(n))
    if not names:
        raise ValueError(
            f"python-packages: {name!r} has no Python source on record (an editable "
            "install?). Install it as a wheel or take it out of `packages`."
        )
    return [PythonFile(name, n, Path(str(distribution.locate_file(n)))) for n in names]


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        raise ValueError(
            f"python-packages: {name!r} is not installed. Install it by "
            f"`pip install {name}` or take it out of `packages`."
        ) from None


def _wanted(name: str) -> bool:
    *folders, file = name.split("/")
    if _SKIPPED_FOLDERS.intersection(folders) or folders[:1] == [OURS]:
        return False
    is_test = file.startswith(("test_", "conftest")) or file.endswith("_test.py")
    return not is_test and ".." not in folders


def _rows(files: list[PythonFile]) -> Iterator[Row]:
    seen: set[tuple[str, str]] = set()
    for source in files:
        try:
            text = source.path.read_bytes().decode().replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue  # a few codec files of the stdlib declare another encoding
        for line, query, document in function_pairs(text):
            if (query, document) not in seen:
                seen.add((query, document))
                fields = {"query": query, "document": document, "domain": source.domain}
                yield Row(f"{source.domain}/{source.name}:{line}", fields)


def function_pairs(text: str) -> Iterator[tuple[int, str, str]]:
    """The (line, query, document) of each documented function in a module's source.

    Left out: short docstrings, functions that only raise or pass, functions whose
    docstring shares a line with code, and modules that this Python cannot parse.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.split("\n")
    for node in _functions(tree):
        query = _first_paragraph(ast.get_docstring(node))
        if len(query.split()) >= MIN_WORDS and _printable(query):
            document = _without_docstring(node, lines)
            if document:
                yield node.lineno, query, document


def _functions(node: ast.AST) -> Iterator[Function]:
    """All functions below `node` in source order; expressions are not searched."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _functions(child)


def _first_paragraph(docstring: str | None) -> str:
    return " ".join((docstring or "").strip().split("\n\n")[0].split())


def _printable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _without_docstring(node: Function, lines: list[str]) -> str:
    """The function's source without decorators and docstring; "" if it is trivial."""
    docstring, *body = node.body
    if not body or docstring.end_lineno is None or node.end_lineno is None:
        return ""
    if docstring.lineno == node.lineno or body[0].lineno == docstring.end_lineno:
        return ""
    if all(isinstance(statement, (ast.Raise, ast.Pass)) for statement in body):
        return ""
    head = lines[node.lineno - 1 : docstring.lineno - 1]
    rest = lines[docstring.end_lineno : node.end_lineno]
    if sum(bool(line.strip()) for line in rest) < MIN_LINES:
        return ""
    while rest and not rest[0].strip():
        rest = rest[1:]
    return textwrap.dedent("\n".join([*head, *rest])).strip()
