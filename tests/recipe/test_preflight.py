"""Mistakes in a recipe are found before any work."""

import dataclasses

import pytest

from cdejax.config.load import load_config
from cdejax.recipe.preflight import check_inputs
from cdejax.training.objectives import InfoNCE
from cdejax.training.objectives.registry import OBJECTIVES
from tests.tiny import write_recipe


class Mined(InfoNCE):
    """An objective of hard negatives."""

    needs_hard_negatives = True


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("evaluation", "measures", ("AP", "nDGC@10")),
        ("training", "select_by", "nDGC@10"),
    ],
)
def test_unknown_measures_are_refused_by_their_setting(
    tmp_path, minilm, section, setting, value
):
    config = load_config(write_recipe(tmp_path, minilm), {})
    changed = dataclasses.replace(getattr(config, section), **{setting: value})
    message = rf"{section}\.{setting}: measure 'nDGC@10': no such measure"
    with pytest.raises(ValueError, match=message):
        check_inputs(dataclasses.replace(config, **{section: changed}))


def test_a_cutoff_beyond_the_rankings_is_refused(tmp_path, minilm):
    """R@2000 of 1,000 documents would be R@1000 under another name."""
    config = load_config(write_recipe(tmp_path, minilm), {})
    evaluation = dataclasses.replace(config.evaluation, measures=("R@2000",))
    with pytest.raises(ValueError, match=r"measures: measure 'R@2000': .* 1,000 docum"):
        check_inputs(dataclasses.replace(config, evaluation=evaluation))


def test_an_objective_of_hard_negatives_needs_some(tmp_path, minilm, monkeypatch):
    config = load_config(write_recipe(tmp_path, minilm), {})
    monkeypatch.setitem(OBJECTIVES, "info_nce", Mined)
    with pytest.raises(ValueError, match=r"training\.negatives_per_query to 1"):
        check_inputs(config)
