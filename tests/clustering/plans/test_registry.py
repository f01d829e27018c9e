"""What it takes to add a planner: its class, a line of the registry, a kind."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from cdejax.clustering.plan import Plan, plan_stage
from cdejax.clustering.plans import registry
from cdejax.clustering.plans.base import Need, Planner
from cdejax.clustering.vectors import Vectors
from cdejax.config import PlanConfig
from cdejax.data.pairs import Pairs
from cdejax.storage.artifacts import artifact_fingerprint, read_manifest
from tests.clustering.conftest import with_plan


@dataclass(frozen=True)
class ByLength(Planner):
    """Pairs of similar documents' lengths share a batch; domains are mixed."""

    @property
    def mixes_domains(self):
        return True

    def epochs(self, pairs, folders, seed):
        source, batch = pairs.source, self.settings.batch_size
        lengths = np.array([len(source.documents[d]) for d in source.train.document])
        order = np.argsort(lengths, kind="stable").astype(np.int32)
        for _ in range(self.settings.epochs):
            yield order[: len(order) // batch * batch].reshape(-1, batch)


@dataclass(frozen=True)
class Easy(Planner):
    """The pairs first whose query and document are most similar."""

    @property
    def needs(self):
        return ("vectors",)

    def epochs(self, pairs, folders, seed):
        vectors, train = Vectors.open(folders["vectors"]), pairs.source.train
        x, y = vectors.queries[train.query], vectors.documents[train.document]
        order = np.argsort(-(x * y).sum(1), kind="stable").astype(np.int32)
        yield order[:100].reshape(-1, self.settings.batch_size)


@dataclass(frozen=True)
class InTurn(Planner):
    """So many steps of one planner, then the steps of another."""

    parts: tuple[Planner, ...] = ()

    @classmethod
    def of(cls, settings, planner_of):
        kinds = str(settings.path).split(",")  # a real one has a field of its own
        return cls(
            settings, tuple(planner_of(replace(settings, kind=k)) for k in kinds)
        )

    @property
    def needs(self):
        return tuple(dict.fromkeys(n for part in self.parts for n in part.needs))

    @property
    def mixes_domains(self):
        return any(part.mixes_domains for part in self.parts)

    def spec(self, folders):
        return {"parts": [part.spec(folders) for part in self.parts]}

    def epochs(self, pairs, folders, seed) -> Iterator[np.ndarray]:
        for each in zip(
            *(p.epochs(pairs, folders, seed) for p in self.parts), strict=True
        ):
            yield np.concatenate([steps[:3] for steps in each])


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for kind, planner in (("by_length", ByLength), ("easy", Easy), ("turn", InTurn)):
        monkeypatch.setitem(registry.PLANNERS, kind, planner)


def test_every_kind_of_the_configuration_has_a_planner(monkeypatch):
    monkeypatch.undo()
    assert {*registry.PLANNERS} == {*get_args(get_type_hints(PlanConfig)["kind"])}
    for kind, planner in registry.PLANNERS.items():
        assert (
            type(registry.planner_of(replace(PlanConfig(path="x"), kind=kind)))
            is planner
        )


def test_a_new_planner_runs(tmp_path, pairs_folder):
    folder = plan_stage(with_plan(kind="by_length"), tmp_path, pairs_folder)
    plan, pairs = Plan.open(folder), Pairs.open(pairs_folder)
    assert (plan.total_steps, plan.batch_size) == (36, 10)
    texts = [pairs.documents[d] for d in pairs.train.document]
    lengths = [[len(texts[row]) for row in plan.rows(step)] for step in range(12)]
    assert np.all(np.diff(np.ravel(lengths)) >= 0)
    counts = read_manifest(folder)["counts"]
    assert counts["dropped"] == [1, 1, 1]
    assert counts["domains_left_out"] == []


def test_a_planner_gets_what_it_needs(tmp_path, pairs_folder, vectors_folder):
    config = with_plan(kind="easy", epochs=1)
    with pytest.raises(ValueError, match="kind: 'easy' needs a vectors artefact"):
        plan_stage(config, tmp_path, pairs_folder)
    folder = plan_stage(config, tmp_path, pairs_folder, {"vectors": vectors_folder})
    assert read_manifest(folder)["spec"] | {"plan": None} == {
        "pairs": artifact_fingerprint(pairs_folder),
        "plan": None,
        "seed": 0,
        "vectors": artifact_fingerprint(vectors_folder),
    }
    assert Plan.open(folder).total_steps == 10


def test_a_planner_of_planners(tmp_path, pairs_folder, clusters_folder):
    config = with_plan(kind="turn", path="clustered,shuffled")
    folders: dict[Need, Path] = {"clusters": clusters_folder}
    with pytest.raises(ValueError, match="needs a clusters artefact"):
        plan_stage(config, tmp_path, pairs_folder)
    plan = Plan.open(plan_stage(config, tmp_path, pairs_folder, folders))
    hard, random = (
        Plan.open(plan_stage(with_plan(kind=kind), tmp_path, pairs_folder, folders))
        for kind in ("clustered", "shuffled")
    )
    for epoch, steps in enumerate(plan.epochs):
        np.testing.assert_array_equal(steps[:3], hard.epochs[epoch][:3])
        np.testing.assert_array_equal(steps[3:], random.epochs[epoch][:3])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.astype(np.int64), r"int64 of shape \(12, 10\)"),
        (lambda x: x[:, :4], r"int32 of shape \(12, 4\)"),
    ],
)
def test_batches_of_another_form_are_refused(
    tmp_path, pairs_folder, monkeypatch, change, said
):
    @dataclass(frozen=True)
    class Wrong(ByLength):
        def epochs(self, pairs, folders, seed):
            yield from map(change, super().epochs(pairs, folders, seed))

    monkeypatch.setitem(registry.PLANNERS, "wrong", Wrong)
    with pytest.raises(ValueError, match=rf"'wrong'.*epoch 0 as {said}"):
        plan_stage(with_plan(kind="wrong"), tmp_path, pairs_folder)
