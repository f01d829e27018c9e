"""The layers of the package, which of its parts import which, and sizes."""

import ast
import functools
import statistics
from pathlib import Path

import pytest

import cdejax

ROOT = Path(cdejax.__file__).parent
LAYERS = [
    ["typing", "counts"],
    ["runtime"],
    ["storage"],
    ["folders"],
    ["config"],
    ["models"],
    ["data"],
    ["embedding"],
    ["retrieval", "export", "clustering"],
    ["training"],
    ["recipe"],
    ["cli"],
    ["__init__", "__main__"],
]
"""From the bottom up; parts of one layer do not import each other."""
LAYER = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}
SLOW = {"jax", "flax", "numpy", "torch", "matplotlib", "tokenizers", "faiss", "sklearn"}
"""Libraries that are optional or slow to import."""
FILES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if ROOT / "export/torch" not in path.parents
]


def name_of(path: Path) -> str:
    parts = ("cdejax", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


MODULES = {name_of(path): path for path in FILES}


def part(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules that a file imports, ours and others, and whether inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = [
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and ast.unparse(test.test) == "TYPE_CHECKING"
        for node in ast.walk(test)
    ]
    late = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if node in checking:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.append((full if full in MODULES else node.module, node in late))
    return found


@functools.cache
def slow(module: str) -> frozenset[str]:
    """Slow libraries that come with a module of ours."""
    found: set[str] = set()
    todo, seen = [module], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        path = MODULES.get(name)
        if path is None:
            found |= {name.split(".")[0]} & SLOW
            continue
        todo += [inner for inner, late in imports(path) if not late]
        parts = name.split(".")
        todo += [".".join(parts[:n]) for n in range(2, len(parts))]  # packages
    return frozenset(found)


def ours(path: Path) -> list[tuple[str, bool]]:
    return [(m, late) for m, late in imports(path) if m in MODULES and m != "cdejax"]


def test_parts_are_few_and_known():
    assert {part(name) for name in MODULES if "." in name} == set(LAYER)
    assert len(LAYER) <= 20


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_upwards(module):
    for other, _ in ours(MODULES[module]):
        here, there = part(module), part(other)
        assert here == there or LAYER[there] < LAYER[here], other


def test_no_files_import_each_other_in_a_circle():
    graph = {m: {other for other, _ in ours(path)} for m, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_only_what_is_slow_is_imported_inside_functions(module):
    """A file of ours may be, if it brings a slow library that would not be there."""
    for other, late in ours(MODULES[module]):
        assert not late or slow(other) - slow(module), other


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def function_lines(path: Path) -> list[int]:
    """Number of lines of each function, decorators and docstring left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((node.end_lineno or node.lineno) - node.lineno + 1)
            if ast.get_docstring(node) is not None:
                doc = node.body[0]
                found[-1] -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short(path):
    assert lines(path) <= 400


def test_medians_of_lines_stay():
    assert statistics.median(map(lines, FILES)) <= 150
    every = [count for path in FILES for count in function_lines(path)]
    assert statistics.median(every) <= 12
