"""A stage that writes something else for the same inputs has another version."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from cdejax.storage.artifacts import VERSIONS
from tests import goldens

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Tolerances of floats: processors and libraries differ in the last bits. Integers and
texts are exact."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return goldens.write_world(tmp_path_factory.mktemp("golden"))


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Places at which two nested values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{place}[{i}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{place}: {old} became {new}"
    elif old != new:
        yield f"{place}: {old!r:.40} became {new!r:.40}"


@pytest.mark.parametrize("case", goldens.CASES)
def test_a_stage_writes_what_it_wrote(world, case):
    if case == "tfds":
        pytest.importorskip("tensorflow_datasets")
    stage = goldens.stage_of(case)
    stored = json.loads((goldens.FOLDER / f"{case}.json").read_text())
    if stored.pop("version") != VERSIONS[stage]:
        pytest.fail(
            f"version {VERSIONS[stage]} of the {stage} stage has no golden output: "
            f"renew the goldens with `{goldens.COMMAND}`"
        )
    if found := list(differences(stored, goldens.output(case, world))):
        pytest.fail(
            f"the stage's output changed: raise its version (VERSIONS[{stage!r}] in "
            "cdejax/storage/artifacts.py) and renew the goldens with "
            f"`{goldens.COMMAND}`. "
            f"{len(found)} differ: {'; '.join(found[:5])}"
        )


def test_every_stage_has_a_golden_output():
    assert {goldens.stage_of(case) for case in goldens.CASES} == set(VERSIONS)


def test_only_floats_may_differ_and_only_a_little():
    old = {"ids": [1, 2], "loss": 1.0, "text": "a"}
    assert not list(differences(old, {**old, "loss": 1.00005}))
    for change in ({"ids": [1, 3]}, {"ids": [1]}, {"loss": 1.001}, {"text": "b"}):
        assert len(list(differences(old, {**old, **change}))) == 1
