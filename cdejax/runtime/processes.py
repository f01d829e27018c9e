"""Several processes, one run: joining, waiting for process 0, and leaving.

A process joins others if its environment says so (see `Membership`); otherwise nothing
here does anything. Work that is to be done once is done by process 0, while the others
wait on JAX's coordination service: no collective is pending meanwhile, so the wait has
no limit. A process that dies or freezes is noticed by its missing heartbeats, on which
JAX aborts the others.
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
"""HOST:PORT at which process 0 listens."""
PROCESSES = "CDEJAX_PROCESSES"
"""Number of processes."""
PROCESS = "CDEJAX_PROCESS"
"""Number of this process, from 0."""
CLUSTER = "CDEJAX_CLUSTER"
"""`auto`: JAX finds the three above by itself (SLURM, Open MPI, TPU pods)."""
HEARTBEAT = "CDEJAX_HEARTBEAT_SECONDS"
"""Silence after which a process counts as dead (default: `HEARTBEAT_SECONDS`)."""
HEARTBEAT_SECONDS = 20
FAREWELL_SECONDS = 5
"""How long a process that fails waits for the others to fail, too."""
_POLL_SECONDS = 10
_once: ContextVar[bool] = ContextVar("once", default=False)
"""Whether this is part of work that not all processes do at the same time."""
_calls: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


@dataclass(frozen=True)
class Membership:
    """How a process joins the others."""

    coordinator: str | None
    """HOST:PORT of process 0; None where JAX is to find all three by itself."""
    processes: int | None
    process: int | None
    heartbeat_seconds: int = HEARTBEAT_SECONDS

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Membership | None:
        """What the environment asks for; None if it asks for nothing.

        Raises:
          ValueError: a variable is missing or has a value without meaning.
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
        """The variables that `read` reads this from."""
        named = {
            COORDINATOR: self.coordinator,
            PROCESSES: self.processes,
            PROCESS: self.process,
            HEARTBEAT: self.heartbeat_seconds,
        }
        return {name: str(value) for name, value in named.items()}


def join_processes(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes if the environment asks for it; before JAX computes.

    Raises:
      ValueError: the environment makes no sense, or the others cannot be reached.
    """
    membership = Membership.read(environment)
    if membership is None:
        return
    import jax

    if jax.distributed.is_initialized():
        return
    # Its handler would swallow SIGTERM, with which launchers and schedulers end us.
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
        # All processes meet here to list their devices. Later, one that computes would
        # wait for others that do not.
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
    """Number of this process among those that joined; 0 if it is alone."""
    state = _state()
    return state.process_id if state is not None else 0


def processes() -> int:
    """Number of processes that joined; 1 if this one is alone."""
    state = _state()
    return state.num_processes if state is not None else 1


def is_main() -> bool:
    """Whether this is process 0, which alone writes and talks to people."""
    return process() == 0


def in_lockstep() -> bool:
    """Whether there are other processes, and they do this at the same time."""
    return processes() > 1 and not _once.get()


def log_prefix() -> str:
    """`process N: ` before what a process other than 0 has to say; else nothing."""
    return "" if is_main() else f"process {process()}: "


def from_main(name: str, function: Callable[[], Any]) -> Any:
    """What the function gives on process 0, on all processes.

    The others wait as long as process 0 lives. All processes call this, and with the
    same names in the same order. Inside such work it only calls the function.

    Args:
      name: of the work, for messages.
      function: called on process 0 only; gives a JSON value.

    Raises:
      ValueError: on the other processes, what process 0 raised, whatever that was.
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
    """What the function gives on process 0; None on the others, which wait.

    Raises:
      ValueError: as `from_main`.
    """
    results: list[T] = []
    from_main(name, lambda: results.append(function()))
    return results[0] if results else None


def main_first(name: str, function: Callable[[], T]) -> T:
    """Calls a function on process 0 and then on the others, which find its files.

    Raises:
      ValueError: as `from_main`.
    """
    results: list[T] = []
    from_main(name, lambda: results.append(function()))
    return results[0] if results else _by_itself(function)


def barrier(name: str, seconds: float) -> None:
    """Waits until all processes are here.

    Raises:
      ValueError: they are not after so many seconds.
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
    """Whether all processes say yes; a collective, which all of them call."""
    if processes() == 1:
        return fine
    import numpy as np
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.asarray(fine)).all())


@contextlib.contextmanager
def leave_in_order() -> Iterator[None]:
    """Leaves the other processes in order at the end, or at once if this one fails.

    JAX's own way out waits for all others. A process that fails alone would wait for
    ones that wait for it: it is ended without, and its end ends the others.
    """
    try:
        yield
    except BaseException as error:
        if processes() > 1:
            _leave_failed(error)
        raise
    _shut_down()


def _leave_failed(error: BaseException) -> None:
    """Returns if all processes fail together; else ends this one."""
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
    """Waits for what process 0 says, in short turns that signals can interrupt."""
    while True:
        try:
            return _client().blocking_key_value_get(key, 1000 * _POLL_SECONDS)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise ValueError(
                    f"lost process 0 while it worked on {name}: {_first_line(error)}"
                ) from None


def _state() -> Any:
    """JAX's record of who joined; None if nobody did."""
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
