"""Every mode of the step benchmark, at toy size, ends with its table."""

import importlib
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.conftest import FOLDER

texts: Any = importlib.import_module("texts")
ours: Any = importlib.import_module("ours")


SHORT = ("--steps", "2")


def step(mode, out, *arguments):
    """What the mode printed, and the results it wrote."""
    command = [sys.executable, str(FOLDER / "step.py"), mode, "--toy"]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 "
        + os.environ["XLA_FLAGS"],
    }
    done = subprocess.run(
        [*command, "--out", str(out), *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    (file,) = out.glob(f"step-{mode}-toy-cpu-*.json")
    assert file.with_suffix(".png").is_file()
    return done.stdout, json.loads(file.read_text())["results"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_peers_and_ours_stand_in_one_table(kind, tmp_path):
    pytest.importorskip("torch")
    profile = ("--profile", str(tmp_path / "t"))
    printed, results = step(kind, tmp_path, *SHORT, "--peer", *profile)
    mine, peer = results.values()
    table = printed[printed.index(f"{kind}: ") :]
    for name in results:
        assert name in table
    assert mine["compilations"]["of_the_step"] == 1
    assert mine["pairs_per_second"]["median"] > 0 < peer["pairs_per_second"]["median"]
    assert mine["trace"]["shares"]["matmul"] > 0


@pytest.mark.slow
def test_results_of_other_texts_stand_beside(tmp_path):
    np.save(tmp_path / "real.npy", np.full((9, 2), 5))
    step("biencoder", tmp_path, *SHORT)
    lengths = ("--lengths", str(tmp_path / "real.npy"))
    step("biencoder", tmp_path, *SHORT, "--batch", "16", *lengths)
    other = ("--seed", "1", "--max-widths", "2")
    _, results = step("biencoder", tmp_path, *SHORT, *other)
    ours = "cdejax, packed rows"
    assert set(results) == {
        ours,
        f"{ours}, batch 16, lengths of real.npy",
        f"{ours}, max widths 2, seed 1",
    }


@pytest.mark.slow
def test_scaling_compares_device_counts(tmp_path):
    arguments = ("--devices", "1,2", "--kinds", "biencoder")
    printed, results = step("scaling", tmp_path, *SHORT, *arguments)
    one, two = results.values()
    assert "weak scaling" in printed
    assert (one["devices"], two["devices"]) == (1, 2)
    assert one["efficiency"] == one["efficiency_in_useful_tflops"] == 1
    each = two["useful_tflops"]["median"] / 2
    expected = pytest.approx(each / one["useful_tflops"]["median"])
    assert two["efficiency_in_useful_tflops"] == expected
    assert "in useful TFLOP/s" in printed
    assert two["batch"] == 2 * one["batch"]


@pytest.mark.slow
def test_a_large_model_is_shared(tmp_path):
    printed, results = step("fsdp", tmp_path, *SHORT)
    (found,) = results.values()
    assert found["devices"] == 2
    assert "received for a chunk" in printed
    assert 0 < found["traffic_of_a_chunk"]["scattered"] < 4 * found["parameters"]


@pytest.mark.slow
def test_memory_tells_the_loss_apart(tmp_path):
    printed, results = step("memory", tmp_path)
    (found,) = results.values()
    assert "loss alone: temp" in printed
    assert 0 < found["loss"]["temp"] < found["step"]["temp"]


@pytest.mark.slow
def test_a_lost_peer_leaves_our_figures(tmp_path):
    found = importlib.import_module("peer_process").run_peer(
        "nonsense", texts.World(None, None, None), range(0), {"seconds": 30.0}
    )
    assert found == []


def test_drawn_lengths_follow_the_law():
    lengths = texts.Law(9, 79, 256).draw(50_000, np.random.default_rng(0))
    np.testing.assert_allclose(lengths.mean(0), [9, 79], rtol=0.02)
    assert lengths.min() >= texts.SHORTEST
    assert lengths.max() == 256


def test_lengths_are_read_from_a_file(tmp_path, capsys):
    np.save(tmp_path / "lengths.npy", [[3, 40], [5, 90]])
    found = texts.read_lengths(str(tmp_path / "lengths.npy"), 64)
    np.testing.assert_array_equal(found, [[3, 40], [5, 64]])
    assert "1 texts cut" in capsys.readouterr().out


def test_threads_load_as_grain_does():
    make = lambda step: step * step  # noqa: E731
    assert list(ours._threads(make, range(3, 20))) == list(
        ours._load(make, range(3, 20))
    )
