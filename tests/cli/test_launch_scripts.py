"""The launch scripts: what they would run, checked against what cdejax understands."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cdejax.cli.main import COMMANDS
from cdejax.runtime import processes

FOLDER = Path(__file__).parents[2] / "scripts" / "launch"
RECIPE = "my configs/recipe.yaml"
ARGUMENTS = {
    "tpu_pod.sh": ("my-pod", "us-east5-a", "/mnt/my share"),
    "xpk.sh": ("my-cluster", "mine", "v5litepod-16", "2", "registry/image:1"),
    "slurm.sbatch": (),
}
PROGRAM = {"tpu_pod.sh": "gcloud", "xpk.sh": "xpk", "slurm.sbatch": "srun"}
VARIABLES = {
    *(processes.COORDINATOR, processes.PROCESSES, processes.PROCESS),
    *(processes.CLUSTER, processes.HEARTBEAT),
}


def call(script, *arguments, path=os.environ["PATH"]):
    return subprocess.run(
        ["bash", str(FOLDER / script), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )


def dry_run(script):
    """The words of the command that a script prints."""
    inner = ("train", "--config", RECIPE)
    done = call(script, "--dry-run", *ARGUMENTS[script], *inner)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def launched(words):
    """Variables and arguments of `env NAME=VALUE … cdejax launch -- COMMAND …`."""
    words = words[words.index("env") + 1 :]
    cut = next(i for i, word in enumerate(words) if Path(word).name == "cdejax")
    return dict(word.split("=", 1) for word in words[:cut]), words[cut + 1 :]


@pytest.mark.parametrize("script", ARGUMENTS)
def test_what_a_script_runs_is_understood(script):
    words = dry_run(script)
    assert words[0] == PROGRAM[script]
    if script != "slurm.sbatch":  # one word, for a shell of another machine
        (remote,) = [w for w in words if w.startswith("--command=")]
        words = shlex.split(remote.removeprefix("--command="))
    environment, arguments = launched(words)
    assert environment.keys() <= VARIABLES
    member = processes.Membership.read(environment)
    assert member == processes.Membership(None, None, None)
    assert arguments == ["launch", "--", "train", "--config", RECIPE]
    assert {"launch", "train"} <= COMMANDS.keys()


def test_what_the_cloud_is_told():
    words = dry_run("tpu_pod.sh")
    assert words[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-pod"]
    assert {"--zone=us-east5-a", "--worker=all"} <= set(words)
    assert words[-1].startswith("--command=cd /mnt/my\\ share && exec env ")
    words = dry_run("xpk.sh")
    assert words[:3] == ["xpk", "workload", "create"]
    told = dict(word[2:].split("=", 1) for word in words[3:])
    assert told.pop("command")
    assert told == {
        "cluster": "my-cluster",
        "workload": "mine",
        "tpu-type": "v5litepod-16",
        "num-slices": "2",
        "docker-image": "registry/image:1",
    }


def test_slurm_gives_every_task_a_gpu():
    lines = (FOLDER / "slurm.sbatch").read_text().splitlines()
    asked = dict(
        line.removeprefix("#SBATCH --").split("=")
        for line in lines
        if line.startswith("#SBATCH --") and "=" in line
    )
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]
    assert "gpus-per-task" not in asked
    assert "--kill-on-bad-exit=1" in dry_run("slurm.sbatch")


@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_dry_run_prints_what_is_run(script, tmp_path):
    fake = tmp_path / PROGRAM[script]
    fake.write_text(f"#!/bin/sh\nprintf '%s\\n' {fake.name} \"$@\"\n")
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    inner = ("train", "--config", RECIPE)
    done = call(script, *ARGUMENTS[script], *inner, path=path)
    assert done.stdout.splitlines() == dry_run(script)


@pytest.mark.parametrize("script", ARGUMENTS)
def test_too_few_arguments_are_refused(script):
    done = call(script, "--dry-run", *ARGUMENTS[script])
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
    assert done.stdout == ""


@pytest.mark.parametrize("script", [*ARGUMENTS, "kubernetes.yaml"])
def test_headers_say_what_was_not_run(script):
    text = (FOLDER / script).read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert "Not run " in "\n".join(header)


def test_scripts_are_clean():
    shellcheck = Path(sys.executable).parent / "shellcheck"
    scripts = [str(FOLDER / script) for script in ARGUMENTS]
    done = subprocess.run([str(shellcheck), *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def manifest():
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    return service, job


def container(job):
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return found


def test_pods_join_by_variables_of_ours(manifest):
    _, job = manifest
    variables = {entry["name"]: entry for entry in container(job)["env"]}
    assert variables.keys() <= VARIABLES
    index = variables[processes.PROCESS]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    pods = job["spec"]["completions"]
    for number in range(pods):  # as Kubernetes would fill it in
        values = {name: x.get("value", str(number)) for name, x in variables.items()}
        member = processes.Membership.read(values)
        assert member is not None
        assert (member.process, member.processes) == (number, pods)


def test_all_pods_run_at_once(manifest):
    _, job = manifest
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["backoffLimit"] >= spec["completions"]


def test_the_service_finds_pod_0(manifest):
    service, job = manifest
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    variables = {entry["name"]: entry.get("value") for entry in container(job)["env"]}
    host, port = variables[processes.COORDINATOR].split(":")
    assert host == f"{name}-0.{pod['subdomain']}"
    assert [entry["port"] for entry in service["spec"]["ports"]] == [int(port)]
    assert container(job)["ports"] == [{"containerPort": int(port)}]


def test_what_is_mounted_is_there(manifest):
    _, job = manifest
    pod = job["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in container(job)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert container(job)["command"][:3] == ["cdejax", "launch", "--"]
    assert "persistentVolumeClaim" in pod["volumes"][0]
