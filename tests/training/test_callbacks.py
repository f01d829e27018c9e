"""`cdejax.train` and its callbacks, on a tiny recipe."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import cdejax
from cdejax.config.load import load_config
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
        assert (folder / "digests.0-1.json").is_file()
        self.checkpoints.append(folder)
        self.hear("checkpoint", step)

    def on_end(self, step):
        self.hear("end", step)


@pytest.fixture(scope="module")
def world(tmp_path_factory, minilm) -> Path:
    """A folder with the recipe, its artefacts and a run without callbacks."""

    def make(folder: Path) -> None:
        training = {"eval_every": 4, "checkpoint_every": 3, "keep_checkpoints": 5}
        plan = {"kind": "shuffled", "epochs": 1, "batch_size": 32}
        write_recipe(folder, minilm, plan=plan, training=training)
        cdejax.train(folder / "recipe.yaml")

    return made_once(tmp_path_factory, "callbacks", make)


@pytest.fixture
def recipe(world, tmp_path) -> dict[str, Any]:
    """The recipe as a mapping, for a run of its own."""
    (tmp_path / "tiny").mkdir()
    artefacts = world / "runs" / "tiny" / "artifacts"
    (tmp_path / "tiny" / "artifacts").symlink_to(artefacts)
    return yaml.safe_load((world / "recipe.yaml").read_text()) | {"output": tmp_path}


def decisive(folder: Path) -> list[dict[str, Any]]:
    """What is logged of steps and evaluations, but for times and starts."""
    kept = ("step", "loss", "gradient_norm", "learning_rate", "heldout_ndcg@10")
    lines = [line for line in read_metrics(folder) if "event" not in line]
    return [{name: line.get(name) for name in kept} for line in lines]


def test_a_run_tells_everything_in_order_and_is_the_same_run(recipe, world):
    recorder, rare = Recorder(), Recorder()
    rare.every = 3
    run = cdejax.train(recipe, callbacks=[recorder, rare])["model"]
    assert recorder.told[0] == ("start", 0)
    assert recorder.steps("step") == list(range(1, STEPS + 1))
    assert rare.steps("step") == [3, 6, STEPS]
    assert recorder.steps("evaluation") == [4, 7]
    assert recorder.steps("checkpoint") == [3, 6, 7]
    assert recorder.told[-1] == ("end", STEPS)
    assert recorder.folders == [run.folder]
    checkpoints = run.folder / "checkpoints"
    assert recorder.checkpoints == [checkpoints / str(n) for n in (3, 6, 7)]
    lines = {line["step"]: line for line in run.metrics() if "loss" in line}
    assert [{"step": n, **recorder.metrics[n]} for n in lines] == [*lines.values()]
    assert decisive(run.folder) == decisive(world / "runs" / "tiny" / "model")


def test_every_way_to_give_a_recipe_and_what_was_trained_is_used(world):
    path = world / "recipe.yaml"
    for given in (str(path), load_config(path), yaml.safe_load(path.read_text())):
        (run,) = cdejax.train(given).values()
        assert run.folder == world / "runs" / "tiny" / "model"
    assert run.metrics()[0]["event"] == "start"
    vectors = run.embedder().encode(["what about salt", "mast and keel"], "query")
    assert vectors.shape == (2, 32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_wrong_recipe_or_variant_is_refused(recipe):
    with pytest.raises(ValueError, match=r"recipe: plan\.batch_siz: .*`batch_size`\?"):
        cdejax.train(recipe | {"plan": {"batch_siz": 4}})
    with pytest.raises(ValueError, match="variant 'mine': the recipe has no variants"):
        cdejax.train(recipe, variant="mine")


@pytest.mark.parametrize(
    ("hook", "step", "done"),
    [
        ("step", 1, 2),  # the second is on the devices by then
        ("evaluation", 4, 4),  # nothing is
    ],
)
def test_a_callback_ends_the_run_and_a_later_start_goes_on(
    recipe, world, hook, step, done
):
    first, second = Recorder((hook, step)), Recorder()
    run = cdejax.train(recipe, callbacks=[first])["model"]
    assert first.steps("step") == list(range(1, done + 1))
    assert first.steps("checkpoint")[-1] == done
    assert first.told[-1] == ("end", done)
    assert run.model() is not None
    cdejax.train(recipe, callbacks=[second])
    assert second.told[0] == ("resume", done)
    assert second.steps("step") == list(range(done + 1, STEPS + 1))
    assert decisive(run.folder) == decisive(world / "runs" / "tiny" / "model")


@pytest.mark.parametrize(
    ("hook", "step"), [("step", 1), ("evaluation", 4), ("checkpoint", STEPS)]
)
def test_an_exception_is_raised_once_the_step_is_saved(recipe, hook, step):
    error = KeyError("mine")
    failing, later = Recorder((hook, step), error), Recorder(("step", 2), OSError())
    given = [failing, later] if hook == "step" else [failing]
    with pytest.raises(KeyError) as raised:
        cdejax.train(recipe, callbacks=given)
    assert raised.value is error
    done = failing.steps("step")[-1]
    assert done == {"step": 2, "evaluation": 4, "checkpoint": STEPS}[hook]
    assert failing.told[-2:] == [("checkpoint", done), ("end", done)]
    assert all(recorder.told == failing.told for recorder in given)


def test_nothing_is_trained_if_a_callback_cannot_start(recipe):
    failing, second = Recorder(("start", 0), KeyError("mine")), Recorder()
    with pytest.raises(KeyError):
        cdejax.train(recipe, callbacks=[second, failing])
    assert failing.told == [("start", 0)]
    assert second.told == [("start", 0), ("end", 0)]
    failing.every = 0
    with pytest.raises(ValueError, match=r"Recorder\.every is 0; set 1 or more"):
        Callbacks([], [failing])


def test_callbacks_hear_of_the_checkpoint_that_a_signal_brings(recipe):
    class Interrupt(Callback):
        def on_step(self, step, metrics):
            if step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.2)  # a thread reads it

    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt, match="after step 2 of 7, which is saved"):
        cdejax.train(recipe, callbacks=[recorder, Interrupt()])
    assert recorder.told[-2:] == [("checkpoint", 2), ("end", 2)]


def test_variants_are_trained_by_name(recipe):
    rates = {"slow": 1e-5, "fast": 1e-4}
    variants = {n: {"training": {"learning_rate": rate}} for n, rate in rates.items()}
    many, stop = recipe | {"variants": variants}, Recorder(("step", 1))
    (fast,) = cdejax.train(many, variant="fast", callbacks=[stop]).values()
    assert (fast.name, fast.config.training.learning_rate) == ("fast", 1e-4)
    assert list(cdejax.train(many, callbacks=[stop])) == ["slow", "fast"]
    assert [folder.name for folder in stop.folders] == ["fast", "slow", "fast"]
    with pytest.raises(ValueError, match="did you mean `fast`"):
        cdejax.train(many, variant="fas")


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([print], r"callbacks: <built-in function print> is not a Callback"),
        (print, "is not a list of callbacks"),
    ],
)
def test_what_is_no_callback_is_refused_before_any_work(callbacks, message):
    with pytest.raises(ValueError, match=message):
        cdejax.train("no such recipe", callbacks=callbacks)


@pytest.mark.parametrize("config", [None, ["my.yaml"]])
def test_what_is_no_recipe_is_refused(config):
    with pytest.raises(
        ValueError, match="is not a recipe; give the path of a YAML file"
    ):
        cdejax.train(config)
