"""`cdejax.train` and its callbacks, on a tiny recipe."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import cdejax
from cdejax.config.load import load_config
from cdejax.recipe.train import Trained
from cdejax.training.callbacks import Callback, Callbacks, StopTraining
from cdejax.training.metrics import read_metrics
from tests.shared import made_once
from tests.tiny import write_recipe

STEPS = 7
"""Checkpoints come after 3, 6 and 7, evaluations after 4 and 7."""


class Recorder(Callback):
    """Keeps what it was told; raises `error` when it is told `at`."""

    def __init__(self, at: tuple[str, int] | None = None, error: Any = StopTraining):
        self.at, self.error = at, error
        self.told: list[tuple[str, int]] = []
        self.metrics: dict[int, Any] = {}
        self.checkpoints: list[Path] = []
        self.folders: list[Path] = []

    def hear(self, name: str, step: int) -> None:
        self.told.append((name, step))
        if self.at == (name, step):
            raise self.error

    def steps(self, name: str) -> list[int]:
        return [step for told, step in self.told if told == name]

    def on_start(self, folder, facts):
        self.folders.append(folder)
        self.hear(facts["event"], facts["step"])

    def on_step(self, step, metrics):
        self.metrics[step] = metrics
        self.hear("step", step)

    def on_evaluation(self, step, metrics):
        assert set(metrics) == {"heldout_ndcg@10"}
        self.hear("evaluation", step)

    def on_checkpoint(self, step, folder):
        assert (folder / "digests.json").is_file() or any(folder.iterdir())
        self.checkpoints.append(folder)
        self.hear("checkpoint", step)

    def on_end(self, step):
        self.hear("end", step)


@pytest.fixture(scope="module")
def world(tmp_path_factory, minilm) -> Path:
    """A folder with the recipe and the artefacts that training reads."""

    def make(folder: Path) -> None:
        training = {"eval_every": 4, "checkpoint_every": 3, "keep_checkpoints": 5}
        write_recipe(
            folder,
            minilm,
            plan={"kind": "shuffled", "epochs": 1, "batch_size": 32},
            training=training,
        )
        cdejax.train(folder / "recipe.yaml")

    return made_once(tmp_path_factory, "callbacks", make)


@pytest.fixture
def recipe(world, tmp_path) -> dict[str, Any]:
    """The recipe as a mapping, for a run of its own."""
    (tmp_path / "tiny").mkdir()
    artefacts = world / "runs" / "tiny" / "artifacts"
    (tmp_path / "tiny" / "artifacts").symlink_to(artefacts)
    return yaml.safe_load((world / "recipe.yaml").read_text()) | {"output": tmp_path}


def logged(run: Trained) -> list[Any]:
    """Steps of the metrics log, with `start` and `resume`."""
    return [line.get("event") or line["step"] for line in run.metrics()]


def test_a_run_tells_everything_in_order(recipe):
    recorder = Recorder()
    run = cdejax.train(recipe, callbacks=[recorder])["model"]
    assert recorder.told[0] == ("start", 0)
    assert recorder.steps("step") == list(range(1, STEPS + 1))
    assert recorder.steps("evaluation") == [4, 7]
    assert recorder.steps("checkpoint") == [3, 6, 7]
    assert recorder.told[-1] == ("end", STEPS)
    assert recorder.folders == [run.folder]
    assert recorder.checkpoints == [
        run.folder / "checkpoints" / str(n) for n in (3, 6, 7)
    ]
    lines = {line["step"]: line for line in run.metrics() if "loss" in line}
    assert [{"step": n, **recorder.metrics[n]} for n in lines] == [*lines.values()]


def test_what_was_trained_can_be_used(recipe):
    run = cdejax.train(recipe)["model"]
    texts = ["what about salt", "mast and keel"]
    vectors = run.embedder().encode(texts, "query")
    assert vectors.shape == (2, run.model().dim)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert run.folder == Path(run.config.output) / "tiny" / "model"
    assert logged(run)[0] == "start"


def test_the_metrics_are_those_of_a_run_without_callbacks(recipe, world):
    run = cdejax.train(recipe, callbacks=[Recorder()])["model"]
    kept = ("step", "loss", "gradient_norm", "learning_rate", "heldout_ndcg@10")

    def decisive(folder: Path) -> list[dict[str, Any]]:
        return [{k: line.get(k) for k in kept} for line in read_metrics(folder)]

    assert decisive(run.folder) == decisive(world / "runs" / "tiny" / "model")


@pytest.mark.parametrize(
    ("at", "done"),
    [
        (("step", 2), 3),  # the third is on the devices by then
        (("step", 3), 3),  # a checkpoint is due: nothing is on the devices
        (("evaluation", 4), 4),
        (("step", STEPS), STEPS),
    ],
    ids=lambda x: f"{x[0]}-{x[1]}" if isinstance(x, tuple) else str(x),
)
def test_a_callback_ends_the_run_and_a_later_start_goes_on(recipe, world, at, done):
    first = Recorder(at)
    run = cdejax.train(recipe, callbacks=[first])["model"]
    assert first.steps("step") == list(range(1, done + 1))
    assert first.steps("checkpoint")[-1] == done
    assert first.told[-1] == ("end", done)
    assert run.model() is not None
    second = Recorder()
    cdejax.train(recipe, callbacks=[second])
    assert second.told[0] == ("resume", done)
    assert second.steps("step") == list(range(done + 1, STEPS + 1))
    whole = {line["step"]: line for line in run.metrics() if "loss" in line}
    plain = read_metrics(world / "runs" / "tiny" / "model")
    losses = [line["loss"] for line in plain if "loss" in line]
    assert [line["loss"] for line in whole.values()] == losses


@pytest.mark.parametrize(
    "at", [("step", 2), ("evaluation", 4), ("checkpoint", 3), ("checkpoint", STEPS)]
)
def test_an_exception_is_raised_once_the_step_is_saved(recipe, at):
    error = KeyError("mine")
    failing, other = Recorder(at, error), Recorder()
    with pytest.raises(KeyError) as raised:
        cdejax.train(recipe, callbacks=[failing, other])
    assert raised.value is error
    assert other.told == failing.told
    saved = other.steps("checkpoint")[-1]
    assert other.told[-1] == ("end", saved)
    again = Recorder()
    cdejax.train(recipe, callbacks=[again])
    assert again.told[0] == ("resume", saved)


def test_the_first_of_two_exceptions_is_raised(recipe):
    early, late = Recorder(("step", 1), KeyError("a")), Recorder(("step", 2), OSError())
    with pytest.raises(KeyError):
        cdejax.train(recipe, callbacks=[late, early])


def test_nothing_is_trained_if_a_callback_cannot_start(recipe):
    failing, second = Recorder(("start", 0), KeyError("mine")), Recorder()
    with pytest.raises(KeyError):
        cdejax.train(recipe, callbacks=[second, failing])
    assert failing.told == [("start", 0)]
    assert second.told == [("start", 0), ("end", 0)]


def test_on_step_is_called_as_often_as_asked(recipe):
    recorder = Recorder()
    recorder.every = 3
    run = cdejax.train(recipe, callbacks=[recorder])["model"]
    assert recorder.steps("step") == [3, 6, STEPS]
    assert len(run.metrics()) == 1 + STEPS + 2  # the log's own every is 1
    recorder.every = 0
    with pytest.raises(ValueError, match=r"Recorder\.every is 0; set 1 or more"):
        Callbacks([], [recorder])


def test_a_signal_ends_the_run_as_before_and_callbacks_hear_of_the_checkpoint(recipe):
    import os
    import signal
    import time

    class Interrupt(Callback):
        def on_step(self, step, metrics):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.2)  # the thread that reads signals takes it

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt, match="after step 3 of 7, which is saved"):
        cdejax.train(recipe, callbacks=[recorder, Interrupt()])
    assert recorder.told[-2:] == [("checkpoint", 3), ("end", 3)]


def test_every_way_to_give_a_recipe(world, recipe, caplog):
    caplog.set_level(logging.ERROR, "cdejax")
    path = world / "recipe.yaml"
    for given in (str(path), path, load_config(path)):
        (run,) = cdejax.train(given).values()
        assert run.folder == world / "runs" / "tiny" / "model"
    with pytest.raises(ValueError, match=r"recipe: plan\.batch_siz: .*`batch_size`\?"):
        cdejax.train(recipe | {"plan": {"batch_siz": 4}})
    with pytest.raises(ValueError, match="variant 'mine': unknown, known are none"):
        cdejax.train(recipe, variant="mine")


def test_variants_are_trained_by_name(recipe):
    variants = {
        "slow": {"training": {"learning_rate": 1e-5}},
        "fast": {"training": {"learning_rate": 1e-4}},
    }
    many, recorder = recipe | {"variants": variants}, Recorder()
    (fast,) = cdejax.train(many, variant="fast", callbacks=[recorder]).values()
    assert (fast.name, fast.config.training.learning_rate) == ("fast", 1e-4)
    runs = cdejax.train(many, callbacks=[recorder])
    assert list(runs) == ["slow", "fast"]
    assert [folder.name for folder in recorder.folders] == ["fast", "slow", "fast"]
    with pytest.raises(ValueError, match="did you mean `fast`"):
        cdejax.train(many, variant="fas")
