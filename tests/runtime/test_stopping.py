"""A run that is told to end saves its step; a full disk ends it in one line."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdejax.training.metrics import read_metrics
from tests.tiny import write_recipe

LIMIT = 300


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, minilm):
    """Of a run that takes far longer than any test, and saves at its end only."""
    folder = tmp_path_factory.mktemp("recipe")
    training = {"checkpoint_every": 1_000_000}
    training |= {"compilation_cache": str(folder / "compiled")}
    return write_recipe(folder, minilm, training=training, plan={"epochs": 60})


def start(recipe, *settings):
    """`cdejax train` on one CPU device."""
    argv = [sys.executable, "-m", "cdejax", "train", "--config", str(recipe)]
    for setting in settings:
        argv += ["--set", setting]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment)


def wait(process, done):
    """Waits until `done()`, while the process lives."""
    while not done():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def saved(run):
    names = [path.name for path in run.glob("checkpoints/*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def test_a_run_that_is_told_to_end_saves_its_step(recipe):
    run = recipe.parent / "runs" / "tiny" / "model"
    process = start(recipe)
    wait(process, lambda: len(read_metrics(run)) > 3)
    process.send_signal(signal.SIGTERM)
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 128 + signal.SIGTERM, err
    words = r"cdejax: stopped by SIGTERM after step (\d+) of \d+, which is saved: the"
    (step,) = re.findall(words, err)
    assert saved(run) == int(step) >= 3
    assert "Traceback" not in err

    # By the clock, too; and by Ctrl-C and then at once.
    process = start(recipe, "training.checkpoint_minutes=0.001")
    wait(process, lambda: saved(run) > int(step))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM), err
    assert re.search("cdejax: ended at once by a second SIG(INT|TERM)\n", err)
    assert "stopped by" not in err
    events = [x for x in read_metrics(run) if "event" in x]
    assert [x["step"] for x in events] == [0, int(step)]

    process = start(recipe)
    wait(process, lambda: len([x for x in read_metrics(run) if "event" in x]) == 3)
    lines = len(read_metrics(run))
    wait(process, lambda: len(read_metrics(run)) > lines)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 128 + signal.SIGINT, err
    assert "cdejax: stopped by SIGINT after step " in err


def test_a_full_disk_is_said_in_one_line_and_loses_nothing(recipe, small_disk):
    output, enlarge = small_disk
    run = output / "tiny" / "model"
    settings = (f"output={output}", "training.checkpoint_every=4")
    process = start(recipe, *settings)
    err = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 2, err
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if "No space left" in line]
    assert len(errors) == 1, err
    assert "a checkpoint could not be written (No space left on device)" in errors[0]
    last = saved(run)  # 4 or 8: what is still being removed takes space, too
    assert last > 0
    assert all(path.name.isdigit() for path in (run / "checkpoints").iterdir())
    assert enlarge()
    process = start(recipe, *settings)
    wait(process, lambda: saved(run) > last)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 128 + signal.SIGTERM
    events = [x for x in read_metrics(run) if "event" in x]
    assert events[-1]["step"] == last
    process.communicate()


def test_a_context_is_kept_where_no_new_one_fits(small_disk):
    import numpy as np

    from cdejax.models.context import Context

    def context(rows):
        vectors = np.ones((rows, 1024), np.float32)
        return Context(np.arange(rows), vectors, np.ones(rows, bool), 0, "m")

    folder = Path(small_disk[0]) / "context"
    context(2000).save(folder)  # 8 MB
    with pytest.raises(OSError, match="No space left"):
        context(4000).save(folder)
    assert len(Context.load(folder)) == 2000
    assert len(list(folder.iterdir())) == 2
