"""What a run's folder may be gone on with."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from cdejax.artifacts import fingerprint
from cdejax.config_io import load_config
from cdejax.training import loop
from tests.tiny import write_recipe

INPUTS: Any = SimpleNamespace(fingerprints={})


@pytest.fixture
def config(tmp_path, minilm, monkeypatch):
    monkeypatch.setattr(loop, "encoder_hash", lambda config: "the encoder's")
    return load_config(write_recipe(tmp_path, minilm), {})


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"chunk_tokens": 64, "packed": False, "max_widths": 3}, True),
        ({"fsdp": 2, "ring": True, "loss_block": 7}, True),
        ({"read_threads": 1, "compilation_cache": "folder"}, True),
        ({"temperature": 0.5}, False),
        ({"negatives_per_query": 1}, False),
    ],
)
def test_how_to_compute_is_no_part_of_what_a_run_is(config, changes, same):
    training = dataclasses.replace(config.training, **changes)
    other = dataclasses.replace(config, training=training)
    found = [fingerprint(loop._recipe(c, INPUTS)) for c in (config, other)]
    assert (found[0] == found[1]) is same
