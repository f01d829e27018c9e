"""The whole trainer on all GPUs of a machine.

Run with `JAX_PLATFORMS=cuda pytest -m gpu tests/training/test_gpus.py`. The first
process to use a card takes its memory: each training is one of its own, and this one
leaves the cards alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cdejax.training.metrics import read_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        os.environ["JAX_PLATFORMS"] != "cuda", reason="needs JAX_PLATFORMS=cuda"
    ),
]
KINDS = ("biencoder", "contextual")
WRITE_RECIPE = """
import json, sys
from pathlib import Path
from tests.tiny import write_recipe

folder, tokenizer, changes = sys.argv[1:]
write_recipe(Path(folder), Path(tokenizer), **json.loads(changes))
"""


@pytest.fixture(scope="module")
def devices():
    """How many there are, asked in a process that ends."""
    program = "import jax; print(jax.device_count())"
    return int(subprocess.check_output([sys.executable, "-c", program]))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, minilm):
    """In float32, so that sums in another order are the only difference."""
    folder = tmp_path_factory.mktemp("recipe")
    changes = {
        "clusters": {"backend": "jax"},
        "training": {"dtype": "float32", "checkpoint_every": 4},
        "variants": {kind: {"model": {"kind": kind}} for kind in KINDS},
    }
    subprocess.run(
        [sys.executable, "-c", WRITE_RECIPE, folder, minilm, json.dumps(changes)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=True,
    )
    return folder / "recipe.yaml"


def start(recipe, kind, output, **training):
    argv = [sys.executable, "-m", "cdejax", "train", "--config", str(recipe)]
    argv += ["--variant", kind, "--set", f"output={output}"]
    for name, value in training.items():
        argv += ["--set", f"training.{name}={value}"]
    environment = os.environ | {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def train(recipe, kind, output, **training):
    """What a training logged."""
    process = start(recipe, kind, output, **training)
    _, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    return log


def losses(output, kind):
    """By step; of a step that ran twice, the later one."""
    lines = read_metrics(output / "tiny" / kind)
    return {x["step"]: x["loss"] for x in lines if "loss" in x}


def assert_same_losses(found, expected):
    assert found.keys() == expected.keys()
    assert len(expected) > 8
    for step, loss in expected.items():
        np.testing.assert_allclose(found[step], loss, rtol=1e-3, err_msg=f"step {step}")


@pytest.mark.parametrize("kind", KINDS)
def test_sharing_changes_nothing(recipe, kind, devices, tmp_path):
    """Parameters shared by all, and documents that pass from card to card."""
    if devices == 1:
        pytest.skip("needs several GPUs")
    train(recipe, kind, tmp_path / "plain")
    train(recipe, kind, tmp_path / "shared", fsdp=devices, ring=True)
    plain, shared = (losses(tmp_path / name, kind) for name in ("plain", "shared"))
    assert_same_losses(shared, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_it_starts_warm_and_ends_the_same(recipe, kind, devices, tmp_path):
    """With parameters shared by all cards and a cache of what was compiled."""
    # Steps of so small a model take no time, but checkpoints do.
    how = {
        "fsdp": devices,
        "checkpoint_every": 2,
        "compilation_cache": tmp_path / "compiled",
    }
    cold = train(recipe, kind, tmp_path / "whole", **how)
    process = start(recipe, kind, tmp_path / "killed", **how)
    checkpoints = tmp_path / "killed" / "tiny" / kind / "checkpoints"
    while not (checkpoints / "4").is_dir():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    assert process.poll() is None, "the run ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    warm = train(recipe, kind, tmp_path / "killed", **how)
    # The cold start has read, too: what it compiled twice.
    assert read_from_cache(warm) > read_from_cache(cold)
    lines = read_metrics(tmp_path / "killed" / "tiny" / kind)
    [resumed] = [x for x in lines if x.get("event") == "resume"]
    assert 4 <= resumed["step"] < resumed["total_steps"]
    whole, killed = (losses(tmp_path / name, kind) for name in ("whole", "killed"))
    assert_same_losses(killed, whole)


def read_from_cache(log):
    return int(re.findall(r"(\d+) of them read from the cache", log)[0])
