"""The page of known faults, and what no other test covers of it."""

import ast
import re
import tomllib
from pathlib import Path

from cdejax.config import EvaluationConfig, TrainingConfig

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+b?) \|(.*)\|$", PAGE, re.M)


def _tests(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_known_fault_has_its_test_or_a_reason():
    numbers = [number for number, _ in ROWS]
    expected = [str(n) for n in range(1, 61) if n != 49] + ["18b", "20b"]
    assert len(numbers) == 61
    assert sorted(numbers) == sorted(expected)
    for number, row in ROWS:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, number
        for file, name in named:
            assert f"test_{name}" in _tests(file), (number, file, name)


def test_nothing_starts_worker_processes():
    """A fork beside the tokenizer's or JAX's threads may hang."""
    starting = re.compile(
        r"\b(import|from) multiprocessing\b|\bos\.fork\b|ProcessPool|mp_prefetch"
        "|worker_count"
    )
    for file in (ROOT / "cdejax").rglob("*.py"):
        assert not starting.search(file.read_text(encoding="utf-8")), file


def test_defaults_are_those_that_people_expect():
    assert TrainingConfig().temperature == 0.02
    assert TrainingConfig().compilation_cache is None
    assert not EvaluationConfig().ignore_identical_ids


def test_every_requirement_has_a_reason():
    """Beside each bound in pyproject.toml stands why, or above the lines it is for."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"].values()
    required = [*project["dependencies"], *(r for extra in extras for r in extra)]
    lines = text.splitlines()
    for requirement in required:
        if requirement.startswith("cdejax["):
            continue
        places = [i for i, line in enumerate(lines) if f'"{requirement}"' in line]
        assert any(_has_reason(lines, place) for place in places), requirement


def _has_reason(lines: list[str], place: int) -> bool:
    """Whether a comment stands beside a line, or above the lines that it is among."""
    while lines[place].lstrip().startswith('"') and "#" not in lines[place]:
        place -= 1
    return "#" in lines[place]
