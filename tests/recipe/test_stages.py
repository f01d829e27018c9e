"""Stages make what a run depends on, whichever planner asks for it."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cdejax.clustering.plan import Plan
from cdejax.clustering.plans import registry
from cdejax.clustering.plans.base import Planner
from cdejax.recipe import stages, variant
from cdejax.recipe.preflight import check_inputs, check_pairs
from cdejax.recipe.stages import Stages
from cdejax.storage.artifacts import read_manifest
from tests import goldens

HAVE = {"pairs", "tokens", "plan"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return goldens.write_world(tmp_path_factory.mktemp("world"))


def recipe(world, margin=None, **plan):
    training = {"false_negative_margin": margin}
    return goldens.recipe(world, plan=plan, training=training)


@dataclass(frozen=True)
class InOrder(Planner):
    """The pairs in their order; reads what `plan.path` names, for the test."""

    @property
    def needs(self):
        return (self.settings.path,)

    def check(self):
        if self.settings.batch_size == 7:
            raise ValueError("plan.batch_size: 7 is unlucky")

    def epochs(self, pairs, folders, seed):
        assert [*folders] == [self.settings.path]
        rows = np.arange(len(pairs), dtype=np.int32)
        yield rows.reshape(-1, self.settings.batch_size)


@pytest.fixture
def in_order(monkeypatch, world):
    """A recipe with that planner, by what it needs."""
    monkeypatch.setitem(registry.PLANNERS, "in_order", InOrder)

    def make(need, **plan):
        config = recipe(world, path=need, **plan)  # which reads known kinds only
        return replace(config, plan=replace(config.plan, kind="in_order"))

    return make


def warming_up(config, steps):
    training = replace(config.training, warmup_steps=steps)
    return replace(config, training=training)


@pytest.mark.parametrize(
    ("need", "more"),
    [
        ("vectors", {"vectors"}),
        ("clusters", {"vectors", "clusters"}),
        ("model", set()),
    ],
)
def test_what_a_planner_needs_is_made(in_order, need, more):
    made = Stages(in_order(need))
    inputs = made.inputs()
    assert inputs.plan.total_steps == len(inputs.pairs.train) // 8 == 4
    assert {*inputs.fingerprints} == HAVE | more
    spec = read_manifest(made.plan())["spec"]
    assert {*spec} == {"pairs", "plan", "seed", need}
    if need != "model":
        assert spec[need] == inputs.fingerprints[need]


def test_a_plan_follows_the_model_it_was_made_with(in_order, world):
    before = Stages(in_order("model")).plan()
    (world / "encoder" / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert Stages(in_order("model")).plan() != before


def test_a_planner_is_asked_before_any_work(in_order):
    with pytest.raises(ValueError, match="7 is unlucky"):
        check_inputs(in_order("vectors", batch_size=7))


def test_steps_that_are_not_known_yet_are_not_checked(in_order):
    config = warming_up(in_order("vectors"), 100)
    check_pairs(config, Stages(config).pairs())


@pytest.mark.parametrize(
    ("kind", "margin", "more"),
    [
        ("shuffled", None, set()),
        ("by_domain", 0.1, {"vectors"}),
        ("clustered", None, {"vectors", "clusters"}),
    ],
)
def test_a_run_depends_on_what_its_plan_and_loss_read(world, kind, margin, more):
    inputs = Stages(recipe(world, kind=kind, margin=margin)).inputs()
    assert {*inputs.fingerprints} == HAVE | more
    assert (inputs.vectors is not None) == (margin is not None)


def test_a_user_s_plan_is_counted_before_other_work(world, tmp_path):
    rows = Plan.open(Stages(recipe(world, kind="by_domain")).plan()).rows(0)
    path = tmp_path / "plan.npy"
    np.save(path, rows[None])
    config = recipe(world, kind="file", path=str(path), epochs=1)
    pairs = Stages(config).pairs()
    check_pairs(config, pairs)
    with pytest.raises(ValueError, match="the plan has 1 steps"):
        check_pairs(warming_up(config, 1), pairs)
    path.unlink()
    with pytest.raises(ValueError, match=r"plan\.npy: no such file or folder$"):
        check_inputs(config)


@pytest.fixture
def looked_up(monkeypatch):
    """How often each stage is looked up."""
    counts = Counter()

    def counted(name):
        stage = getattr(stages, name)

        def count(*args):
            counts[name.removesuffix("_stage")] += 1
            return stage(*args)

        return count

    for name in ("pairs", "tokens", "vectors", "clusters", "plan", "hardness"):
        monkeypatch.setattr(stages, f"{name}_stage", counted(f"{name}_stage"))
    return counts


@pytest.mark.parametrize("method", ["file", "encoder"])
def test_each_stage_is_looked_up_once(world, looked_up, method):
    vectors = {"method": method, "encoder": str(world / "encoder")}
    made = Stages(goldens.recipe(world, vectors=vectors))
    for _ in range(2):
        made.inputs()
        made.hardness()
    assert {*looked_up} == {"vectors", "clusters", "hardness"} | HAVE
    assert {*looked_up.values()} == {1}


def test_a_training_looks_every_stage_up_once(world, looked_up, monkeypatch):
    monkeypatch.setattr(variant.loop, "train", lambda *args, **_: args[2])
    variant.train_variant("model", recipe(world, kind="by_domain", margin=0.0))
    assert looked_up == dict.fromkeys({"vectors"} | HAVE, 1)


def test_a_stage_that_failed_is_looked_up_again(world, looked_up):
    made = Stages(recipe(world, kind="by_domain", batch_size=30))
    for _ in range(2):
        with pytest.raises(ValueError, match="smaller than a batch of 30"):
            made.plan()
    assert looked_up == {"pairs": 1, "plan": 2}


def test_what_processes_do_together_all_of_them_do_again(world, looked_up, monkeypatch):
    made = Stages(recipe(world))
    monkeypatch.setattr(stages, "in_lockstep", lambda: True)
    assert made.pairs() == made.pairs()
    assert looked_up == {"pairs": 2}


def test_a_command_looks_every_stage_up_once(world, looked_up):
    config = recipe(world)
    with stages.one_lookup():
        assert Stages(config).plan() == Stages(config).plan()
        other = dataclasses.replace(config, seed=config.seed + 1)
        assert Stages(other).plan() != Stages(config).plan()
    assert set(looked_up.values()) == {2}  # one for each recipe
    Stages(config).plan()
    assert set(looked_up.values()) == {3}


def test_another_object_looks_again(world, looked_up):
    config = recipe(world)
    assert Stages(config).pairs() == Stages(config).pairs()
    assert looked_up == {"pairs": 2}
