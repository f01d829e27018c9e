"""Which parameters of a run are kept as the best."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdejax.config import Config, TrainingConfig
from cdejax.retrieval.measures import Measure
from cdejax.retrieval.measures.registry import MEASURES
from cdejax.training import loop


@pytest.mark.parametrize(("higher", "offered"), [(True, 3.0), (False, -3.0)])
def test_checkpoints_are_chosen_by_the_measure_of_the_recipe(
    higher, offered, monkeypatch
):
    made = Measure("Rank", lambda *_: 0.0, higher_is_better=higher)
    monkeypatch.setitem(MEASURES, "Rank", made)
    seen: list[Any] = []
    run: Any = SimpleNamespace(
        config=Config(training=TrainingConfig(select_by="Rank@9")),
        evaluate=len,
        _score=lambda _: 3.0,
        done=4,
        callbacks=SimpleNamespace(evaluation=lambda *told: seen.append(told)),
        best=SimpleNamespace(offer=lambda step, score, _: seen.append((step, score))),
        state=SimpleNamespace(params=None),
    )
    loop._Run._evaluate(run)
    assert seen == [(4, {"heldout_rank@9": 3.0}), (4, offered)]
