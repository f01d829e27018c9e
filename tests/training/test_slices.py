"""Two processes that each hold a device of every slice train as one process does."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np

from cdejax.runtime.processes import Membership
from cdejax.training.sharding import make_mesh
from tests.training.slices_worker import DEVICES, STEPS, norms, train


def start(process: int, address: str) -> subprocess.Popen[str]:
    joined = Membership(address, 2, process).environment()
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.slices_worker"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | joined | {"JAX_NUM_CPU_DEVICES": str(DEVICES // 2)},
    )


def test_slices_that_lie_across_processes_train_as_one():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    workers = [start(process, address) for process in range(2)]
    try:
        expected, params = train(make_mesh(jax.devices()[:DEVICES]))
        said = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (out, err) in zip(workers, said, strict=True):
        assert worker.returncode == 0, err
        found = json.loads(out.splitlines()[-1])
        assert found["owners"] == [[0, 1], [0, 1]]
        assert len(found["metrics"]) == STEPS
        for one, other in zip(found["metrics"], expected, strict=True):
            np.testing.assert_allclose(
                list(one.values()), list(other.values()), rtol=1e-4
            )
        np.testing.assert_allclose(found["norms"], norms(params), rtol=1e-4)
