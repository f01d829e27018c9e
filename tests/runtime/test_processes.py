"""Joining, waiting and leaving; and that a process reads its own rows only."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cdejax.cli.main import main
from cdejax.runtime import processes
from cdejax.runtime.processes import (
    CLUSTER,
    COORDINATOR,
    HEARTBEAT,
    PROCESS,
    PROCESSES,
    Membership,
)
from cdejax.storage import artifacts
from tests.training.toy import make_batches, world

WHOLE = {COORDINATOR: "10.0.0.1:8476", PROCESSES: "2", PROCESS: "1"}
WORKER = Path(__file__).parents[1] / "distributed_worker.py"


def test_nothing_is_asked_for():
    assert Membership.read({}) is None
    assert Membership.read({COORDINATOR: "", "SLURM_JOB_ID": "7"}) is None
    processes.join_processes({})
    assert (processes.process(), processes.processes()) == (0, 1)
    assert processes.is_main()


def test_what_is_written_is_read():
    asked = Membership.read(WHOLE)
    assert asked == Membership("10.0.0.1:8476", 2, 1, processes.HEARTBEAT_SECONDS)
    assert asked is not None
    other = Membership("[::1]:1", 3, 0, 7)
    assert Membership.read(other.environment()) == other
    assert Membership.read({CLUSTER: "auto", HEARTBEAT: "9"}) == Membership(
        None, None, None, 9
    )


BAD = {
    "process missing": ({PROCESS: ""}, "CDEJAX_PROCESSES set, but not CDEJAX_PROCESS:"),
    "two missing": ({PROCESS: "", PROCESSES: ""}, "CDEJAX_PROCESSES, CDEJAX_PROCESS:"),
    "no port": ({COORDINATOR: "10.0.0.1"}, "CDEJAX_COORDINATOR=10.0.0.1: give HOST"),
    "port too high": ({COORDINATOR: "a:65536"}, "CDEJAX_COORDINATOR=a:65536"),
    "no host": ({COORDINATOR: ":80"}, "CDEJAX_COORDINATOR=:80"),
    "no number": ({PROCESSES: "two"}, "CDEJAX_PROCESSES=two: give a whole number"),
    "no process": ({PROCESSES: "0"}, "CDEJAX_PROCESSES=0: give a whole number from 1"),
    "negative": ({PROCESS: "-1"}, "CDEJAX_PROCESS=-1: give a whole number from 0"),
    "too high": ({PROCESS: "2"}, "numbered from 0 to CDEJAX_PROCESSES - 1 = 1"),
    "no heartbeat": ({HEARTBEAT: "0"}, "CDEJAX_HEARTBEAT_SECONDS=0: give a whole"),
    "both ways": ({CLUSTER: "auto"}, "CDEJAX_CLUSTER=auto and CDEJAX_COORDINATOR"),
    "other cluster": ({CLUSTER: "slurm"}, "CDEJAX_CLUSTER=slurm: the only value"),
}


@pytest.mark.parametrize("case", BAD)
def test_values_without_meaning_end_in_one_line(case, monkeypatch, tmp_path, capsys):
    changes, message = BAD[case]
    for name, value in (WHOLE | changes).items():
        monkeypatch.setenv(name, value)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {sources: [{path: p}]}\nmodel: {encoder: e}\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", str(recipe)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_no_cluster_is_said(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {sources: [{path: p}]}\nmodel: {encoder: e}\n")
    done = subprocess.run(
        [sys.executable, "-m", "cdejax", "train", "--config", str(recipe)],
        env={"PATH": "", "JAX_PLATFORMS": "cpu", CLUSTER: "auto"},
        cwd=WORKER.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("cdejax: error: CDEJAX_CLUSTER=auto: JAX finds no")
    assert done.stderr.count("\n") == 1


def test_one_process_alone_waits_for_nobody():
    assert processes.from_main("x", lambda: 3) == 3
    assert processes.main_only("x", lambda: [3]) == [3]
    assert processes.main_first("x", lambda: {3}) == {3}
    assert processes.all_agree(True)
    processes.barrier("x", 0)
    with processes.leave_in_order():
        pass


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each of two processes says of itself (see `distributed_worker`)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    members = [Membership(address, 2, number, 20) for number in range(2)]
    folder = tmp_path_factory.mktemp("workers")
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)],
            env={**os.environ, **member.environment(), "JAX_NUM_CPU_DEVICES": "2"},
            cwd=WORKER.parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for member in members
    ]
    try:
        outputs = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    said = [
        dict(line.split(" = ", 1) for line in out.splitlines() if " = " in line)
        for out, _ in outputs
    ]
    for answer, worker, (_, error) in zip(said, workers, outputs, strict=True):
        answer["code"], answer["error"] = str(worker.returncode), error
    return said


EXPECTED = {
    "place": ("0 of 2, main True", "1 of 2, main False"),
    "from main": ("[1, 'a']", "[1, 'a']"),
    "main only": ("process 0", "None"),
    "main first": ("0", "1"),
    "computed": ("6.0", "None"),
    "nested": ("7", "None"),
    "failure of main": ("KeyError: 'gone'", "ValueError: process 0 stopped: 'gone'"),
    "agree": ("True False", "True False"),
    "replicated": ("[0.0, 1.0, 2.0, 3.0] True", "[0.0, 1.0, 2.0, 3.0] True"),
    "key": ("[0, 7]", "[0, 7]"),
    "sharded": ("[2.0, 2.0]", "[2.0, 2.0]"),
    "whole": ("[0.0, 1.0, 2.0, 3.0] cpu", "[0.0, 1.0, 2.0, 3.0] cpu"),
    "stopping after 1": ("False", "False"),
    "stopping after 2": ("True", "True"),
    "steps told": ("2", "0"),
    "failure of callback": (
        "KeyError: 'mine'",
        "ValueError: process 0 stopped: 'mine'",
    ),
}


@pytest.mark.parametrize("what", EXPECTED)
def test_two_processes_agree(answers, what):
    said = tuple(answer.get(what) for answer in answers)
    assert said == EXPECTED[what], answers[0]["error"] + answers[1]["error"]


def test_a_barrier_names_itself_and_its_time(answers):
    assert answers[0]["barrier"].startswith("not all processes came to meet in 1 s")


def test_all_that_fail_together_leave_in_order(answers):
    """Both keep their exit code; neither is aborted by the other's end."""
    assert [answer["code"] for answer in answers] == ["2", "2"]
    assert "Terminating process" not in answers[0]["error"] + answers[1]["error"]


class Counting(np.ndarray):
    """Counts the values that are read."""

    read = 0

    def __getitem__(self, index):
        found = np.asarray(self)[index]
        type(self).read += np.size(found)
        return found


@pytest.mark.parametrize("context", [0, 8])
def test_each_process_reads_its_rows_only(context, monkeypatch):
    maker = make_batches(world(negatives=2), devices=4, context=context, negatives=2)
    for store in (maker.tokens.queries, maker.tokens.documents):
        monkeypatch.setattr(store, "values", store.values.view(Counting))
    monkeypatch.setattr(maker, "tokens", maker.tokens)

    def read(local):
        Counting.read = 0
        maker.step(1, local)
        return Counting.read

    parts, whole = [read([0, 1]), read([2, 3])], read(None)
    assert sum(parts) == whole == maker.real_tokens(1)
    assert max(parts) < 0.7 * whole


def test_others_do_not_make_what_process_0_should_have(tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "IN_SIGHT_SECONDS", 0)
    monkeypatch.setattr(artifacts, "is_main", lambda: False)
    made = []
    with pytest.raises(ValueError, match="a file system that all hosts share"):
        artifacts.run_stage(
            tmp_path, "plan", {}, lambda folder: made.append(folder) or {}
        )
    assert not made
    assert not list(tmp_path.iterdir())
