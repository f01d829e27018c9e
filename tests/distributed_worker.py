"""One of two processes of `test_distributed`: prints what it learns, then fails."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from cdejax.runtime import processes
from cdejax.runtime.global_arrays import replicate, whole_arrays
from cdejax.runtime.processes import barrier, from_main, main_first, main_only
from cdejax.training.callbacks import Callback, Callbacks


def say(name, value):
    print(f"{name} = {value}", flush=True)  # noqa: T201


def tell_failure():
    def fail():
        raise KeyError("gone")

    try:
        from_main("failure", fail)
    except Exception as error:
        say("failure of main", f"{type(error).__name__}: {error}")


def order():
    """Process 0's call ends before another's begins."""
    folder = Path(sys.argv[1])
    before = len(list(folder.iterdir()))
    (folder / str(processes.process())).touch()
    return before


def coordination():
    number = processes.process()
    main = processes.is_main()
    say("place", f"{number} of {processes.processes()}, main {main}")
    say("from main", from_main("value", lambda: [1, "a"] if main else "wrong"))
    say("main only", main_only("only", lambda: f"process {number}"))
    say("main first", main_first("first", order))
    computed = main_only("computed", lambda: float(jnp.arange(4).sum()))
    say("computed", computed)
    say("nested", main_only("outer", lambda: from_main("inner", lambda: 7)))
    tell_failure()
    if main:
        try:
            barrier("meet", 1)
        except ValueError as error:
            say("barrier", error)
    say("agree", f"{processes.all_agree(True)} {processes.all_agree(main)}")


def arrays():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    found = replicate({"x": jnp.arange(4.0), "key": jax.random.key(7)}, mesh)
    x = found["x"]
    local = np.asarray(x.addressable_data(1)).tolist()
    say("replicated", f"{local} {x.is_fully_replicated}")
    key = found["key"].addressable_data(0)
    say("key", np.asarray(jax.random.key_data(key)).tolist())
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    sharded = jax.jit(lambda x: x, out_shardings=sharding)(x)
    count = len(sharded.addressable_shards), sharded.addressable_shards[0].data.size
    say("sharded", [float(count[0]), 2.0 * count[1]])
    whole = whole_arrays([sharded])[0]
    (device,) = whole.devices()
    assert device in jax.local_devices()
    say("whole", f"{np.asarray(whole).tolist()} {device.platform}")


class Failing(Callback):
    """Fails after the second step."""

    steps = 0

    def on_step(self, step, metrics):
        self.steps = step
        if step == 2:
            raise KeyError("mine")


def callbacks():
    callback = Failing()
    told = Callbacks([], [callback])
    told.start(Path(sys.argv[1]), {})
    for step in (1, 2):
        told.step(step, last=False, metrics=dict)
        say(f"stopping after {step}", told.stopping)
    say("steps told", callback.steps)
    try:
        told.raise_error()
    except Exception as error:
        say("failure of callback", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    processes.join_processes()
    with processes.leave_in_order():
        coordination()
        arrays()
        callbacks()
        raise SystemExit(2)
