"""What a run's folder may be gone on with."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from cdejax.artifacts import fingerprint
from cdejax.config_io import load_config
from cdejax.training import run_folder
from tests.tiny import write_recipe

INPUTS: Any = SimpleNamespace(fingerprints={})


@pytest.fixture
def config(tmp_path, minilm, monkeypatch):
    monkeypatch.setattr(run_folder, "encoder_hash", lambda config: "the encoder's")
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
    found = [fingerprint(run_folder._recipe(c, INPUTS)) for c in (config, other)]
    assert (found[0] == found[1]) is same


def test_a_folder_without_a_checkpoint_is_free(config, tmp_path):
    """A start that failed on a mistake in the recipe leaves nothing to protect."""
    mistaken = dataclasses.replace(config, seed=config.seed + 1)
    run = tmp_path / "run"
    run.mkdir()
    run_folder.claim_run(run, mistaken, INPUTS)
    run_folder.claim_run(run, config, INPUTS)
    run_folder.check_run(run, config, INPUTS)
    (run / run_folder.CHECKPOINTS / "2").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"another recipe.*differs in seed"):
        run_folder.claim_run(run, mistaken, INPUTS)
