"""The shapes of a plan's steps are found once, and read at every later start."""

import dataclasses
import json
from collections import Counter

import jax
import numpy as np
import pytest

from cdejax.recipe.stages import Stages
from cdejax.training.batch import BatchSettings
from cdejax.training.from_recipe import make_batches
from cdejax.training.run_model import build_model
from cdejax.training.shapes import shapes_of
from cdejax.training.sharding import make_mesh
from cdejax.training.step_rows import StepSampler
from tests import goldens

CONTEXTUAL = BatchSettings(
    seed=3,
    devices=2,
    chunk_tokens=64,
    context_size=4,
    soft_tokens=8,
    negatives_per_query=1,
    max_widths=2,
    packed=True,
)
SETTINGS = {
    "packed": dataclasses.replace(CONTEXTUAL, context_size=0, soft_tokens=0),
    "padded": dataclasses.replace(CONTEXTUAL, context_size=0, packed=False),
    "contextual": CONTEXTUAL,
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    world = goldens.write_world(tmp_path_factory.mktemp("world"))
    return goldens.recipe(world, plan={"kind": "by_domain"})


@pytest.fixture(scope="module")
def made(config):
    """Inputs of training, whose artefacts are all there but for the shapes."""
    return Stages(config).inputs()


@pytest.fixture
def inputs(made, tmp_path):
    return dataclasses.replace(made, root=tmp_path)


@pytest.fixture
def walked(monkeypatch):
    """How often each step is looked at."""
    counts = Counter()
    real = StepSampler.rows

    def rows(sampler, step):
        counts[step] += 1
        return real(sampler, step)

    monkeypatch.setattr(StepSampler, "rows", rows)
    return counts


@pytest.mark.parametrize("case", SETTINGS)
def test_a_second_start_walks_no_step(inputs, walked, case):
    first = shapes_of(inputs, SETTINGS[case])
    assert {*walked} == set(range(inputs.plan.total_steps))
    walked.clear()
    assert shapes_of(inputs, SETTINGS[case]) == first
    assert not walked


def test_nor_does_a_second_start_of_a_run(config, inputs, walked):
    mesh = make_mesh(jax.devices()[:2])
    model = build_model(config, mesh)
    first = make_batches(config, inputs, model, mesh)
    walked.clear()
    second = make_batches(config, inputs, model, mesh)
    assert not walked
    jax.tree.map(np.testing.assert_array_equal, first.step(1), second.step(1))
    assert walked == {1: 2}


@pytest.mark.parametrize("case", SETTINGS)
def test_without_a_folder_the_shapes_are_the_same(inputs, case):
    without = dataclasses.replace(inputs, root=None)
    assert shapes_of(without, SETTINGS[case]) == shapes_of(inputs, SETTINGS[case])


def test_what_decides_the_shapes_makes_others(inputs):
    def folders():
        return len(list(inputs.root.glob("shapes-*")))

    shapes_of(inputs, CONTEXTUAL)
    for field, value in dataclasses.asdict(CONTEXTUAL).items():
        before = folders()
        other = not value if isinstance(value, bool) else value * 2
        shapes_of(inputs, dataclasses.replace(CONTEXTUAL, **{field: other}))
        assert folders() == before + 1, field
    for name, more in (("pairs", 1), ("tokens", 1), ("plan", 1), ("vectors", 0)):
        before = folders()
        fingerprints = inputs.fingerprints | {name: "other"}
        shapes_of(dataclasses.replace(inputs, fingerprints=fingerprints), CONTEXTUAL)
        assert folders() == before + more, name


def test_a_damaged_file_is_named(inputs):
    shapes_of(inputs, CONTEXTUAL)
    (folder,) = inputs.root.glob("shapes-*")
    content = json.loads((folder / "shapes.json").read_text())
    (folder / "shapes.json").write_text(json.dumps(content | {"known_width": 9}))
    with pytest.raises(ValueError, match=r"shapes-.*: shapes\.json"):
        shapes_of(inputs, CONTEXTUAL)


def test_a_batch_size_that_does_not_fit_is_refused_before_any_work(inputs, walked):
    for change in ({"devices": 3}, {"context_size": 9}):
        with pytest.raises(ValueError, match=r"plan\.batch_size"):
            shapes_of(inputs, dataclasses.replace(CONTEXTUAL, **change))
    assert not walked
    assert not list(inputs.root.iterdir())
