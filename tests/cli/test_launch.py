"""Several real processes: the same training as one, and one end for all."""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from flax import nnx

from cdejax.cli.launch import GRACE_SECONDS, launch
from cdejax.cli.options import LaunchOptions
from cdejax.config.load import load_config
from cdejax.recipe import stages, variant
from cdejax.storage.artifacts import read_manifest
from cdejax.storage.digests import files_of, read_digests
from cdejax.storage.lock import lock_folder
from cdejax.training import loop
from cdejax.training.checkpoint_folder import CheckpointFolder
from cdejax.training.metrics import read_metrics
from cdejax.training.run_model import build_model
from tests.shared import made_once
from tests.tiny import write_recipe

HEARTBEAT = 10
LIMIT = HEARTBEAT + GRACE_SECONDS + 30
"""Until all must have ended (with what starting and noticing may take here)."""
KINDS = ("biencoder", "contextual")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, minilm):
    """Hard negatives and the teacher's mask, so that masks cross processes."""
    make = functools.partial(write_with_negatives, tokenizer=minilm)
    return made_once(tmp_path_factory, "launched", make) / "recipe.yaml"


def write_with_negatives(folder, tokenizer):
    training = {"negatives_per_query": 2, "false_negative_margin": 0.0}
    training |= {"eval_every": 4, "checkpoint_every": 2}
    variants = {kind: {"model": {"kind": kind}} for kind in KINDS}
    path = write_recipe(
        folder, tokenizer, training=training, plan={"epochs": 1}, variants=variants
    )
    _add_negatives(folder / "pairs.jsonl")
    recipe = yaml.safe_load(path.read_text())
    recipe["data"]["sources"][0]["columns"]["negatives"] = "negatives"
    path.write_text(yaml.safe_dump(recipe))


def _add_negatives(path: Path) -> None:
    """One or two to each of half of the pairs; the others are left out."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[:150]]
    for number, row in enumerate(rows):
        words = row["document"].split()
        row["negatives"] = [
            " ".join(f"{word}{extra}" for word in words)  # near no held-out document
            for extra in range(1 + number % 2)
        ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def start(*arguments, options=(), devices=1, **settings):
    """`cdejax launch` of a command, on so many devices a process."""
    argv = [sys.executable, "-m", "cdejax", "launch", "--heartbeat", str(HEARTBEAT)]
    argv += [*options, "--devices", str(devices), *map(str, arguments)]
    for name, value in settings.items():
        argv += ["--set", f"{name.replace('__', '.')}={value}"]
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def started(*arguments, **settings):
    """The same; whatever happens, nothing of it is left."""
    process = start(*arguments, **settings)
    try:
        yield process
    finally:
        for child in children(process):
            _kill(child)
        _kill(process.pid)
        process.communicate()


def _kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def run(*arguments, **settings):
    """Exit code, standard output, standard error."""
    # Nobody freezes here, but a busy machine may keep a process waiting for long.
    two = ("--processes", "2", "--heartbeat", "100")
    with started(*arguments, options=two, **settings) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def said_by_others(err):
    """What processes other than 0 log, but for JAX's collectives on CPU."""
    lines = [line for line in err.splitlines() if line.startswith("[1] ")]
    return [line for line in lines if "cdejax" in line or "━" in line]


def children(process):
    """Processes of a launcher by number."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has just ended
            continue
        if parent == process.pid:
            found.append(int(status.parent.name))
    return sorted(found)


def verdict(err):
    """The launcher's only line, the last of all."""
    said = [line for line in err.splitlines() if line.startswith("cdejax launch: ")]
    assert len(said) == 1, err
    assert err.splitlines()[-1] == said[0]
    return said[0]


def alone(recipe, kind, output, devices=4):
    """The same training by one process, this one; its folder."""
    config = load_config(recipe, {"output": str(output)})
    resolved = stages.variants_of(config)[kind]
    inputs = stages.Stages(resolved).inputs()
    score = variant.heldout_score(resolved, inputs.pairs)
    folder = stages.root_of(resolved) / kind
    return loop.train(resolved, inputs, folder, score, jax.devices()[:devices])


def checkpoints(folder):
    """Steps of a run's finished checkpoints; others have longer names."""
    names = [path.name for path in folder.glob("checkpoints/*")]
    return [int(name) for name in names if name.isdigit()]


def state(folder):
    """Every array of the newest checkpoint, whatever devices wrote it."""
    import orbax.checkpoint as ocp

    newest = max(checkpoints(folder))
    path = (folder / "checkpoints" / str(newest) / "default").resolve()
    reader = ocp.PyTreeCheckpointer()
    metadata: Any = reader.metadata(path)
    tree = metadata.item_metadata.tree
    plain = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in tree}
    return reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=plain))


def assert_same(ours, theirs, recipe, kind):
    """Apart by what sums in another order make, beside the way that was gone."""
    model = build_model(stages.variants_of(load_config(recipe))[kind])
    leaves = jax.tree_util.tree_leaves_with_path(nnx.split(model)[1])
    start = {f".params{jax.tree_util.keystr(path)}": x for path, x in leaves}
    ours, theirs = state(ours), state(theirs)
    assert start.keys() < ours.keys() == theirs.keys()
    for name, value in theirs.items():
        moved = np.linalg.norm(value - np.asarray(start.get(name, 0.0)))
        assert np.linalg.norm(ours[name] - value) <= 0.02 * moved + 1e-7, name


def values(folder):
    lines = [x for x in read_metrics(folder) if "loss" in x]
    names = ("loss", "accuracy", "hardness", "masked_share", "gradient_norm")
    return [x["step"] for x in lines], np.array([[x[n] for n in names] for x in lines])


@pytest.fixture(scope="module")
def trained(recipe, tmp_path_factory):
    """Of a variant: its folders by two processes and by one, and what was printed.

    The biencoder is evaluated and exported, too.
    """

    @functools.cache
    def train(kind):
        def make(folder):
            command = "run" if kind == "biencoder" else "train"
            arguments = (command, "--config", recipe, "--variant", kind)
            code, out, err = run(*arguments, output=folder / "two", devices=2)
            assert code == 0, err
            alone(recipe, kind, folder / "one")
            (folder / "out").write_text(out)
            (folder / "err").write_text(err)

        folder = made_once(tmp_path_factory, f"{kind}-launched", make)
        said = ((folder / name).read_text() for name in ("out", "err"))
        two, one = (folder / name / "tiny" / kind for name in ("two", "one"))
        return two, one, *said

    return train


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one(trained, recipe, kind):
    ours, theirs, *_ = trained(kind)
    steps, found = values(ours)
    expected_steps, expected = values(theirs)
    assert steps == expected_steps == list(range(1, len(steps) + 1))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert (found[:, 3] > 0).all(), "nothing was masked"
    assert_same(ours, theirs, recipe, kind)
    scores = [x["heldout_ndcg@10"] for x in read_metrics(ours) if len(x) == 2]
    theirs_scores = [x["heldout_ndcg@10"] for x in read_metrics(theirs) if len(x) == 2]
    np.testing.assert_allclose(scores, theirs_scores, atol=2e-3)
    assert len(scores) == 2
    best = json.loads((ours / "best" / "best.json").read_text())
    assert best["score"] == max(scores)


def test_only_process_0_writes_and_speaks(trained):
    folder, _, out, err = trained("contextual")
    events = [x for x in read_metrics(folder) if "event" in x]
    assert [x["devices"] for x in events] == ["4 x cpu"]
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert out.splitlines().count(str(folder)) == 1
    assert "cdejax.training.loop" in err
    assert not said_by_others(err)


@pytest.mark.parametrize("kind", KINDS)
def test_processes_share_the_shapes_of_all_their_devices(trained, kind):
    folder, *_, err = trained(kind)
    (shapes,) = folder.parent.glob("artifacts/shapes-*")
    settings = read_manifest(shapes)["spec"]["settings"]
    assert settings["devices"] == 4
    assert "\nplan shapes " in err


def test_each_process_digests_the_files_that_it_wrote(trained, tmp_path):
    folder, *_ = trained("biencoder")
    step = max(checkpoints(folder))
    copy = tmp_path / "checkpoints"
    shutil.copytree(folder / "checkpoints" / str(step), copy / str(step))
    tables = [
        read_digests(copy / str(step) / f"digests.{number}-2.json")
        for number in range(2)
    ]
    written = {path.relative_to(copy / str(step)) for path in files_of(copy)}
    names = {path.as_posix() for path in written if "digests." not in path.name}
    assert not tables[0].keys() & tables[1].keys()
    assert tables[0].keys() | tables[1].keys() == names
    kept = CheckpointFolder(copy)
    assert kept.damage(step) is None
    for table in tables:
        name = max(table, key=lambda name: table[name][0])
        path = copy / str(step) / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        assert f"{name} is damaged" in (kept.damage(step) or "")
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def _cut_back(source, target, step):
    """A run as a kill after that step would have left it."""
    shutil.copytree(source, target)
    for path in (target / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)
    shutil.rmtree(target / "best")


def test_other_numbers_of_processes_go_on(trained, recipe, tmp_path):
    """Two on, one off and the other way round, from step 4 to the end."""
    kind = "contextual"
    two, one, *_ = trained(kind)
    for name, source in (("two", one), ("one", two)):
        _cut_back(source, tmp_path / name / "tiny" / kind, 4)
        artefacts = source.parent / "artifacts"
        (tmp_path / name / "tiny" / "artifacts").symlink_to(artefacts)
    code, _, err = run(
        *("train", "--config", recipe, "--variant", kind), output=tmp_path / "two"
    )
    assert code == 0, err
    alone(recipe, kind, tmp_path / "one", devices=2)
    for name in ("two", "one"):
        folder = tmp_path / name / "tiny" / kind
        events = [x for x in read_metrics(folder) if "event" in x]
        assert [x["event"] for x in events] == ["start", "resume"]
        assert events[1]["step"] == 4
        steps, found = values(folder)
        assert steps == list(range(1, events[1]["total_steps"] + 1))
        np.testing.assert_allclose(found, values(two)[1], rtol=1e-3)
        assert_same(folder, two, recipe, kind)


@pytest.fixture(scope="module")
def endless(tmp_path_factory, trained):
    """A folder for runs that must be ended; most of their artefacts are there."""
    folder = tmp_path_factory.mktemp("endless")
    artefacts = trained("biencoder")[0].parent / "artifacts"
    for name in ("tiny", "wild"):
        shutil.copytree(artefacts, folder / name / "artifacts")
    return folder


def train_on(recipe, folder):
    """Arguments of a run that takes far longer than any test."""
    settings = {"output": folder, "plan__epochs": 100, "training__eval_every": 0}
    return ("train", "--config", recipe, "--variant", "biencoder"), settings


def wait_for_checkpoint(folder, *processes, after=0):
    """Waits until a run has written one, and returns its step."""
    while True:
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        newest = max(checkpoints(folder / "tiny" / "biencoder"), default=0)
        if newest > after:
            return newest
        time.sleep(0.05)


def ended(process, running, *, limit=LIMIT):
    """Exit code and standard error of a launcher; none of its processes is left."""
    err = process.communicate(timeout=limit)[1]
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    return process.returncode, err


def test_a_killed_process_ends_all_and_training_goes_on(recipe, endless):
    arguments, settings = train_on(recipe, endless)
    two = ("--processes", "2")
    with started(*arguments, options=two, **settings) as process:
        before = wait_for_checkpoint(endless, process)
        running = children(process)
        os.kill(running[1], signal.SIGKILL)
        code, err = ended(process, running)
    assert code == 128 + signal.SIGKILL
    line = verdict(err)
    assert "\nplan shapes " in err
    assert "process 1 on " in line
    assert "ended by SIGKILL" in line
    assert "training resumes at its last checkpoint" in line
    with started(*arguments, options=two, **settings) as process:
        wait_for_checkpoint(endless, process, after=before)
        running = children(process)
        process.send_signal(signal.SIGTERM)
        code, err = ended(process, running)
    assert code == 128 + signal.SIGTERM
    assert "plan shapes" not in err
    assert verdict(err).startswith("cdejax launch: ended by SIGTERM.")
    events = [x for x in read_metrics(endless / "tiny" / "biencoder") if "event" in x]
    assert [x["event"] for x in events] == ["start", "resume"]
    assert events[1]["step"] >= before


def test_a_frozen_host_ends_the_others(recipe, endless):
    """Two hosts with a launcher each; one stops with all that runs on it."""
    arguments, settings = train_on(recipe, endless)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    several = ("--hosts", "2", "--coordinator", address)
    before = max(checkpoints(endless / "tiny" / "biencoder"), default=0)
    with (
        started(*arguments, options=(*several, "--host", "0"), **settings) as here,
        started(*arguments, options=(*several, "--host", "1"), **settings) as there,
    ):
        wait_for_checkpoint(endless, here, there, after=before)
        running = children(here)
        for pid in (there.pid, *children(there)):
            os.kill(pid, signal.SIGSTOP)
        code, err = ended(here, running)
    assert code == 128 + signal.SIGABRT
    line = verdict(err)
    assert "process 0 on " in line
    assert "process 1 died or froze" in line
    assert "training resumes at its last checkpoint" in line


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_frozen_process_ends_the_others(recipe, endless, number):
    arguments, settings = train_on(recipe, endless)
    before = max(checkpoints(endless / "tiny" / "biencoder"), default=0)
    two = ("--processes", "2")
    with started(*arguments, options=two, **settings) as process:
        wait_for_checkpoint(endless, process, after=before)
        running = children(process)
        os.kill(running[number], signal.SIGSTOP)
        code, err = ended(process, running)
    assert code == 128 + signal.SIGABRT
    line = verdict(err)
    assert f"process {1 - number} on " in line
    assert f"process {number} died or froze" in line


def test_a_run_that_is_held_ends_all(recipe, endless):
    arguments, settings = train_on(recipe, endless)
    with lock_folder(endless / "tiny" / "biencoder"):
        code, _, err = run(*arguments, **settings)
    assert code == 2
    assert "another run (process" in err
    assert "[1] cdejax: error: process 1: process 0 stopped: " in err
    assert "Traceback" not in err
    assert verdict(err).endswith("All are ended.")  # nor would it help to start again


def test_a_loss_that_is_not_finite_stops_all(recipe, endless):
    arguments, settings = train_on(recipe, endless)
    rate = {"training__learning_rate": "1e30", "name": "wild"}
    code, _, err = run(*arguments, **settings, **rate)
    assert code == 2
    (dump,) = endless.glob("wild/biencoder/nonfinite-step-*.json")
    assert f"cdejax: error: step {dump.stem.split('-')[-1]}: loss" in err
    assert "[1] cdejax: error: process 1: step" in err
    assert "Traceback" not in err
    assert "Terminating process" not in err
    verdict(err)


def test_a_whole_run_is_reported_once(trained):
    folder, _, out, err = trained("biencoder")
    assert out.count("BM25") == 1
    assert (folder / "export" / "README.md").is_file()
    assert not said_by_others(err)


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("kill -KILL $$", 128 + signal.SIGKILL, "SIGKILL. "),
        ("kill -TERM $$", 128 + signal.SIGTERM, "SIGTERM (WARNING: an old one). "),
        ("exit 3", 3, "exit code 3 (WARNING: an old one). "),
    ],
)
def test_last_words_are_of_those_that_could_speak(end, code, how, tmp_path):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho 'WARNING: an old one' >&2\n{end}\n")
    script.chmod(0o755)
    program = (
        "import sys; from cdejax.cli.launch import LaunchOptions, launch\n"
        "sys.executable = sys.argv[1]; launch(LaunchOptions(command=('train',)))"
    )
    command = [sys.executable, "-c", program, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert f" ended by {how}All are ended" in verdict(done.stderr)


WRONG = {
    "no command": ({}, "no command"),
    "no processes": ({"processes": 0}, "--processes 0: give 1 or more"),
    "host too high": (
        {"hosts": 2, "host": 2, "coordinator": "a:1"},
        "--host 2: hosts are numbered from 0 to --hosts - 1",
    ),
    "no coordinator": ({"hosts": 2}, "also give --coordinator HOST:PORT"),
    "no port": ({"coordinator": "a"}, "--coordinator=a: give HOST:PORT"),
    "no heartbeat": ({"heartbeat": 0}, "--heartbeat 0"),
    "no devices": ({"devices": 0}, "--devices 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_make_no_sense_start_nothing(case, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    changes, words = WRONG[case]
    command = () if case == "no command" else ("train",)
    with pytest.raises(ValueError, match=words):
        launch(LaunchOptions(command=command, **changes))


def test_the_environments_own_words_are_kept(monkeypatch):
    monkeypatch.setenv("CDEJAX_CLUSTER", "auto")
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ValueError, match="the environment says already how to join"):
        launch(LaunchOptions(processes=2, command=("train",)))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's kernel")
def test_processes_end_with_a_launcher_that_was_killed():
    code = (
        "import subprocess, time\n"
        "from cdejax.cli.launch import _end_with_launcher as end\n"
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=end)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = int(launcher.stdout.readline())
        launcher.kill()
    for _ in range(100):
        stat = Path(f"/proc/{child}/stat")
        if not stat.exists() or ") Z" in stat.read_text():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the process outlives its launcher")
