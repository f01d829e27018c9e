"""Multi-process runs: joining, work of process 0, and leaving.

A process joins others if its environment says so (see `Membership`); otherwise the
functions here do nothing special. Work that must be done once is done by process 0,
while the others wait on JAX's coordination service: no collective is pending meanwhile,
so they can wait for any time. If a process dies or freezes, JAX notices its missing
heartbeats and aborts the others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

COORDINATOR = "CDEJAX_COORDINATOR"
"""HOST:PORT that process 0 listens on."""
PROCESSES = "CDEJAX_PROCESSES"
"""Number of processes."""
PROCESS = "CDEJAX_PROCESS"
"""Number of this process, from 0."""
CLUSTER = "CDEJAX_CLUSTER"
"""`auto`: JAX detects the three above itself (SLURM, Open MPI, TPU pods)."""
HEARTBEAT = "CDEJAX_HEARTBEAT_SECONDS"
"""Seconds without a heartbeat after which a process counts as dead."""
HEARTBEAT_SECONDS = 20
FAREWELL_SECONDS = 5
"""How long a failing process waits for the others to fail as well."""
_POLL_SECONDS = 10
_once: ContextVar[bool] = ContextVar("once", default=False)
"""Whether the current work is not done by all processes at the same time."""
_calls: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


@dataclass(frozen=True)
class Membership:
    """How a process joins the others."""

    coordinator: str | None
    """HOST:PORT of process 0; None if JAX detects the cluster itself."""
    processes: int | None
    process: int | None
    heartbeat_seconds: int = HEARTBEAT_SECONDS

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Membership | None:
        """Reads the environment; None if it does not ask for several processes.

        Raises:
          ValueError: a variable is missing or invalid.
        """
        names = (COORDINATOR, PROCESSES, PROCESS)
        given = [name for name in names if environment.get(name)]
        cluster = environment.get(CLUSTER)
        if not given and not cluster:
            return None
        heartbeat = _integer(environment, HEARTBEAT, 1, HEARTBEAT_SECONDS)
        if cluster:
            _check_cluster(cluster, given)
            return cls(None, None, None, heartbeat)
        if missing := [name for name in names if name not in given]:
            raise ValueError(
                f"{', '.join(given)} set, but not {', '.join(missing)}: set all of "
                f"{', '.join(names)}, or none to run in one process"
            )
        processes = _integer(environment, PROCESSES, 1)
        process = _integer(environment, PROCESS, 0)
        if process >= processes:
            raise ValueError(
                f"{PROCESS}={process}: processes are numbered from 0 to {PROCESSES} - "
                f"1 = {processes - 1}"
            )
        coordinator = check_address(COORDINATOR, environment[COORDINATOR])
        return cls(coordinator, processes, process, heartbeat)

    def environment(self) -> dict[str, str]:
        """The environment variables from which `read` makes this."""
        named = {
            COORDINATOR: self.coordinator,
            PROCESSES: self.processes,
            PROCESS: self.process,
            HEARTBEAT: self.heartbeat_seconds,
        }
        return {name: str(value) for name, value in named.items()}


def join_processes(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes if the environment asks for it.

    Must be called before JAX is used.

    Raises:
      ValueError: the environment is invalid, or the others cannot be reached.
    """
    membership = Membership.read(environment)
    if membership is None:
        return
    import jax

    if jax.distributed.is_initialized():
        return
    # Its handler would swallow SIGTERM, which launchers and schedulers send.
    jax.config.update("jax_enable_preemption_service", False)
    explicit = membership.coordinator is not None
    try:
        jax.distributed.initialize(
            membership.coordinator,
            membership.processes,
            membership.process,
            cluster_detection_method="deactivate" if explicit else None,
            heartbeat_timeout_seconds=membership.heartbeat_seconds,
        )
        # All processes synchronise here to list their devices. Later, one that computes
        # would wait for others that do not.
        jax.devices()
    except (RuntimeError, ValueError, OSError) as error:
        raise _not_joined(membership, error) from None


def _not_joined(membership: Membership, error: Exception) -> ValueError:
    if membership.coordinator is None:
        return ValueError(
            f"{CLUSTER}=auto: JAX finds no cluster here ({_first_line(error)}); set "
            f"{COORDINATOR}, {PROCESSES} and {PROCESS} instead"
        )
    return ValueError(
        f"{COORDINATOR}={membership.coordinator}: cannot join the other processes "
        f"({_first_line(error)}). Check that process 0 runs and can be reached there"
    )


def process() -> int:
    """Index of this process among those that joined; 0 if it is alone."""
    state = _state()
    return state.process_id if state is not None else 0


def processes() -> int:
    """Number of processes that joined; 1 if this one is alone."""
    state = _state()
    return state.num_processes if state is not None else 1


def is_main() -> bool:
    """Whether this is process 0, the only one that writes files and shows progress."""
    return process() == 0


def in_lockstep() -> bool:
    """Whether other processes do the current work at the same time."""
    return processes() > 1 and not _once.get()


def log_prefix() -> str:
    """Prefix of log messages, `process N: `; empty on process 0."""
    return "" if is_main() else f"process {process()}: "


def from_main(name: str, function: Callable[[], Any]) -> Any:
    """Calls a function on process 0 and returns its result on all processes.

    The others wait as long as process 0 lives. All processes must call this with the
    same names in the same order. Nested calls only call their function.

    Args:
      name: name of the work, for messages.
      function: called on process 0 only; must return a JSON value.

    Raises:
      ValueError: on the other processes, if the function raised anything.
    """
    if processes() == 1 or _once.get():
        return function()
    key = f"cdejax/{name}/{next(_calls[name])}"
    if not is_main():
        answer = json.loads(_await(key, name))
        if "error" in answer:
            raise ValueError(f"process 0 stopped: {answer['error']}")
        return answer["value"]
    try:
        answer = {"value": _by_itself(function)}
    except BaseException as error:
        answer = {"error": _first_line(error)}
        raise
    finally:
        _client().key_value_set(key, json.dumps(answer))
    return answer["value"]


def _by_itself(function: Callable[[], T]) -> T:
    token = _once.set(True)
    try:
        return function()
    finally:
        _once.reset(token)


def main_only(name: str, function: Callable[[], T]) -> T | None:
    """Calls a function on process 0; returns None on the others, which wait.

    Raises:
      ValueError: as `from_main`.
    """
    results: list[T] = []
    from_main(name, lambda: results.append(function()))
    return results[0] if results else None


def main_first(name: str, function: Callable[[], T]) -> T:
    """Calls a function on process 0, then on the others, which find its files.

    Raises:
      ValueError: as `from_main`.
    """
    results: list[T] = []
    from_main(name, lambda: results.append(function()))
    return results[0] if results else _by_itself(function)


def barrier(name: str, seconds: float) -> None:
    """Waits for all processes.

    Raises:
      ValueError: not all processes arrive in time.
    """
    if processes() == 1:
        return
    key = f"cdejax/{name}/{next(_calls[name])}"
    try:
        _client().wait_at_barrier(key, timeout_in_ms=round(1000 * seconds))
    except RuntimeError as error:
        raise ValueError(
            f"not all processes came to {name} in {seconds:g} s: {_first_line(error)}"
        ) from None


def all_agree(fine: bool) -> bool:
    """Whether `fine` is true on all processes; a collective that all must call."""
    if processes() == 1:
        return fine
    import numpy as np
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(fine)).all())


@contextlib.contextmanager
def leave_in_order() -> Iterator[None]:
    """Shuts down with the other processes at the end, or alone if this one fails.

    JAX's own shutdown waits for all processes. A process that fails alone would wait
    for others that wait for it: it exits without a shutdown, which ends the others.
    """
    try:
        yield
    except BaseException as error:
        if processes() > 1:
            _leave_failed(error)
        raise
    _shut_down()


def _leave_failed(error: BaseException) -> None:
    """Returns if all processes fail; otherwise exits this one."""
    try:
        barrier("failure", FAREWELL_SECONDS)
    except ValueError:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else 1
        else:
            traceback.print_exception(error)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _shut_down()


def _shut_down() -> None:
    if processes() > 1:
        import jax

        jax.distributed.shutdown()


def _await(key: str, name: str) -> str:
    """Waits for the answer of process 0, polling so that signals can interrupt."""
    while True:
        try:
            return _client().blocking_key_value_get(key, 1000 * _POLL_SECONDS)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise ValueError(
                    f"lost process 0 while it worked on {name}: {_first_line(error)}"
                ) from None


def _state() -> Any:
    """JAX's state of the joined processes; None if none joined."""
    if "jax" not in sys.modules:
        return None
    # The coordination service has no public name; Orbax takes this one, too.
    from jax._src import distributed

    joined = distributed.global_state.client is not None
    return distributed.global_state if joined else None


def _client() -> Any:
    return _state().client


def _check_cluster(cluster: str, given: list[str]) -> None:
    if cluster != "auto":
        raise ValueError(
            f"{CLUSTER}={cluster}: the only value is `auto`; leave it out to run in "
            "one process"
        )
    if given:
        raise ValueError(f"{CLUSTER}=auto and {', '.join(given)}: set one or the other")


def check_address(name: str, address: str) -> str:
    """Returns the address; ValueError (naming it) if it is not HOST:PORT."""
    host, _, port = address.rpartition(":")
    known = host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16
    if not known:
        raise ValueError(f"{name}={address}: give HOST:PORT, e.g. 10.0.0.1:8476")
    return address


def _integer(
    environment: Mapping[str, str], name: str, least: int, default: int | None = None
) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise ValueError(f"{name}={text}: give a whole number from {least}")
    return int(text)


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0]
