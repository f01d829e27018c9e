"""What a run's folder may be gone on with."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdejax.config.load import load_config
from cdejax.storage.artifacts import RUN, begun_with, fingerprint, read_json, write_json
from cdejax.training import run_folder
from tests.tiny import write_recipe

INPUTS: Any = SimpleNamespace(fingerprints={})


@pytest.fixture
def config(tmp_path, minilm, monkeypatch):
    monkeypatch.setattr(run_folder, "start_files", lambda config: {"encoder": {}})
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
    found = [
        fingerprint(run_folder._decisive_settings(c, INPUTS)) for c in (config, other)
    ]
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


def test_a_run_begun_before_a_setting_existed_resumes_at_its_default(config, tmp_path):
    run = tmp_path / "run"
    (run / run_folder.CHECKPOINTS / "2").mkdir(parents=True)
    training = run_folder._decisive_settings(config, INPUTS)["training"]
    for name in ("objective", "select_by"):
        del training[name]
    held = run_folder._decisive_settings(config, INPUTS) | {"training": training}
    version = run_folder.VERSIONS["training"]
    write_json(run / run_folder.RUN, {"version": version, "recipe": held})
    run_folder.claim_run(run, config, INPUTS)
    training = dataclasses.replace(config.training, select_by="AP")
    other = dataclasses.replace(config, training=training)
    with pytest.raises(ValueError, match=r"differs in training\.select_by\)"):
        run_folder.claim_run(run, other, INPUTS)


OLD = {
    "model": {
        "kind": "biencoder",
        "encoder": "encoder",
        "layers": None,
        "first_stage_layers": None,
        "pooling": None,
        "head": "none",
        "context_size": 8,
        "soft_tokens": 8,
        "sequence_dropout": 0.005,
    },
    "training": {
        "init_from": None,
        "learning_rate": 0.001,
        "schedule": "linear",
        "warmup_steps": 0,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "temperature": 0.05,
        "duplicates": "ignore",
        "false_negative_margin": 0.0,
        "negatives_per_query": 0,
        "dtype": "auto",
    },
    "seed": 0,
    "encoder": "8eb06ce6a54eee92",
    "artefacts": {
        "pairs": "8810bdd79261ccc2",
        "tokens": "4e657e131f80f7f0",
        "plan": "f90ec02d927ad2b1",
        "vectors": "201b29fed552316d",
        "clusters": "5fc96111549e74a3",
    },
}
"""A recipe as it was written into run.json before runs had versions."""


def begun(run: Path, config: Any) -> Path:
    """A run with a checkpoint."""
    run.mkdir()
    run_folder.claim_run(run, config, INPUTS)
    (run / run_folder.CHECKPOINTS / "2").mkdir(parents=True)
    return run


def test_a_run_of_another_version_is_refused_in_one_line(config, tmp_path):
    run = begun(tmp_path / "run", config)
    held = read_json(run / RUN)
    run_folder.check_version(run)
    for version in (held["version"] - 1, held["version"] + 1):
        write_json(run / RUN, held | {"version": version, "cdejax": "0.0.1"})
        for check in (
            lambda: run_folder.check_version(run),
            lambda: run_folder.claim_run(run, config, INPUTS),
        ):
            with pytest.raises(ValueError, match=f"version {version} of cdejax 0.0.1"):
                check()
        assert begun_with(run) == set()


def test_a_run_from_before_runs_had_versions_is_refused_in_one_line(config, tmp_path):
    """It did not record all files that decide a run, so no one can tell if they are
    still those that it began with."""
    run = begun(tmp_path / "run", config)
    write_json(run / RUN, {"fingerprint": "1c0f2b7de0d9a5f1", "recipe": OLD})
    with pytest.raises(ValueError, match="another version of cdejax") as error:
        run_folder.check_version(run)
    assert "\n" not in str(error.value)
    assert "(training version none;" in str(error.value)
    assert begun_with(run) == set()


def test_an_upgrade_that_leaves_the_training_alone_continues_a_run(config, tmp_path):
    run = begun(tmp_path / "run", config)
    write_json(run / RUN, read_json(run / RUN) | {"cdejax": "0.0.1"})
    run_folder.claim_run(run, config, INPUTS)
