"""Starts the processes of a run on this host, and terminates all when one fails.

The processes run `python -m cdejax` with the variables of `runtime.processes`. If a
scheduler has already set these, a single process is started and monitored as well.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO

from cdejax.cli.options import LaunchOptions
from cdejax.runtime.processes import Membership, check_address

GRACE_SECONDS = 10
"""Time between SIGTERM and SIGKILL when processes are terminated."""
_AGAIN = "All are ended; started again, training resumes at its last checkpoint."
_BAD_INPUT = 2
"""Exit code after which a restart would fail again unless something is changed."""
_KEPT_LINES = 60
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
"""Option of `prctl` that requests a signal when the parent dies (Linux)."""
_NOISE = re.compile(r"\s*(@ +0x|\*\*\*|RPC:|$)")
"""Lines that follow the one with JAX's reason for aborting."""
_SILENT = re.compile(r"stopped sending heartbeats\):\n((?:\d+\n)+)")
_LOST_MAIN = re.compile(r"Failed to send RPC to coordination|Service/Heartbeat")


def _end_with_launcher() -> None:
    """Makes the kernel terminate this process if its launcher is killed (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def launch(options: LaunchOptions) -> None:
    """Runs a command in the processes of this host until all have ended.

    Output of process 0 is passed on unchanged; that of the others goes to standard
    error, every line prefixed with the process number. Returns if all succeed.

    Raises:
      ValueError: the options contradict each other or the environment.
      SystemExit: a process failed, or this one received a signal: the others have been
        terminated, and one line reports why. If a process freezes, here or on another
        host, JAX aborts the others after `heartbeat` seconds and reports it.
    """
    if not options.command:
        raise ValueError("no command: e.g. `cdejax launch --processes 2 train …`")
    children: list[_Child] = []
    ended: queue.SimpleQueue[_Child | int] = queue.SimpleQueue()
    with _signals_to(ended):
        try:
            for name, environment in _environments(options):
                children.append(_Child(name, options.command, environment, ended))
            _watch(children, ended)
        finally:
            _terminate(children)


def _watch(children: list[_Child], ended: queue.SimpleQueue[_Child | int]) -> None:
    """Returns once all have succeeded."""
    for _ in children:
        first = ended.get()
        if isinstance(first, int):
            name = signal.Signals(first).name
            sys.stderr.write(f"cdejax launch: ended by {name}. {_AGAIN}\n")
            raise SystemExit(128 + first)
        if code := first.process.returncode:
            _terminate(children)
            last = "All are ended." if code == _BAD_INPUT else _AGAIN
            sys.stderr.write(f"cdejax launch: {first.verdict()}. {last}\n")
            raise SystemExit(code if code > 0 else 128 - code)


class _Child:
    """A process, the threads that pass on its output, and its last lines of output."""

    def __init__(
        self,
        name: str,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        ended: queue.SimpleQueue[_Child | int],
    ):
        self.name = name
        self.lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        first = name in ("", "process 0")
        mark = b"" if first else f"[{name.removeprefix('process ')}] ".encode()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cdejax", *command],
            stdin=subprocess.DEVNULL,
            stdout=None if first else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment, **(_terminal() if first else {})},
            start_new_session=True,  # only the launcher sends it signals
            preexec_fn=_end_with_launcher,
        )
        pipes = [(self.process.stderr, sys.stderr.buffer, True)]
        pipes += [(self.process.stdout, sys.stderr.buffer, False)]
        self._pumps = [
            threading.Thread(target=self._pass_on, args=(source, sink, mark, kept))
            for source, sink, kept in pipes
            if source is not None
        ]
        waiter = threading.Thread(target=self._wait, args=(ended,))
        for thread in (*self._pumps, waiter):
            thread.daemon = True
            thread.start()

    def _pass_on(
        self, source: IO[bytes], sink: IO[bytes], mark: bytes, kept: bool
    ) -> None:
        """Passes lines on; progress bars (ending in a carriage return) immediately."""
        for block in _blocks(source, lines=bool(mark)):
            if kept:
                text = block.decode(errors="replace")
                self.lines.extend(text.splitlines(keepends=True))
            with contextlib.suppress(OSError, ValueError):  # the reader has closed it
                sink.write(mark + block)
                sink.flush()

    def _wait(self, ended: queue.SimpleQueue[_Child | int]) -> None:
        self.process.wait()
        self.drain()
        ended.put(self)

    def drain(self) -> None:
        """Waits until the output of an ended process has been passed on."""
        for thread in self._pumps:
            thread.join(timeout=2)  # a grandchild may hold the pipe open

    def verdict(self) -> str:
        """How and why it ended, in one line."""
        code = self.process.returncode
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        if code != -signal.SIGKILL:  # a process cannot report a SIGKILL
            how += f" ({self._reason()})"
        return f"{self.name or 'the process'} on {socket.gethostname()} ended by {how}"

    def _reason(self) -> str:
        text = "".join(self.lines)
        if silent := _SILENT.search(text):
            numbers = ", ".join(silent.group(1).split())
            return f"process {numbers} died or froze (its heartbeats stopped)"
        if self.process.returncode == -signal.SIGABRT and _LOST_MAIN.search(text):
            return "process 0 died or froze (it does not answer)"
        spoken = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
        return spoken[-1] if spoken else "it said nothing"

    def signal(self, number: int) -> None:
        """Sends a signal to the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _blocks(source: IO[bytes], lines: bool) -> Iterator[bytes]:
    """Blocks of a stream, line by line or as they arrive."""
    if lines:
        yield from source
        return
    while block := os.read(source.fileno(), 1 << 16):
        yield block


def _terminate(children: list[_Child]) -> None:
    """Terminates all running processes, by SIGKILL after `GRACE_SECONDS`."""
    deadline = time.monotonic() + GRACE_SECONDS
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.signal(signal.SIGTERM)
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.signal(signal.SIGKILL)
            child.process.wait()
    for child in children:
        child.drain()


@contextlib.contextmanager
def _signals_to(ended: queue.SimpleQueue[_Child | int]) -> Iterator[None]:
    """Puts Ctrl-C and SIGTERM into the queue instead of terminating this process."""
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.getsignal(number) for number in caught}
    old = {n: handler for n, handler in old.items() if handler != signal.SIG_IGN}
    for number in old:
        signal.signal(number, lambda number, _: ended.put(number))
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _environments(options: LaunchOptions) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and environment variables of each process of this host.

    Raises:
      ValueError: the options contradict each other or the environment.
    """
    if (given := Membership.read(os.environ)) is not None:
        if options != LaunchOptions(devices=options.devices, command=options.command):
            raise ValueError(
                "the environment says already how to join (CDEJAX_…): leave out the "
                "options, or unset the variables"
            )
        known = given.process is not None
        yield f"process {given.process}" if known else "", _devices(options, 0)
        return
    total = options.processes * options.hosts
    for least, name in ((1, "processes"), (1, "hosts"), (0, "host"), (1, "heartbeat")):
        if (value := getattr(options, name)) < least:
            raise ValueError(f"--{name} {value}: give {least} or more")
    if options.host >= options.hosts:
        raise ValueError(
            f"--host {options.host}: hosts are numbered from 0 to --hosts - 1"
        )
    coordinator = _coordinator(options)
    for place in range(options.processes):
        number = options.host * options.processes + place
        member = Membership(coordinator, total, number, options.heartbeat)
        yield f"process {number}", member.environment() | _devices(options, place)


def _coordinator(options: LaunchOptions) -> str:
    if options.coordinator is not None:
        return check_address("--coordinator", options.coordinator)
    if options.hosts > 1:
        raise ValueError(
            "--hosts: also give --coordinator HOST:PORT, an address of host 0 with a "
            "free port, the same on all hosts"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _devices(options: LaunchOptions, place: int) -> dict[str, str]:
    """JAX's environment variables that select a process's share of the devices."""
    if options.devices is None:
        return {}
    if options.devices < 1:
        raise ValueError(f"--devices {options.devices}: give 1 or more")
    share = range(place * options.devices, (place + 1) * options.devices)
    return {
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, share)),
        "JAX_NUM_CPU_DEVICES": str(options.devices),
    }


def _terminal() -> dict[str, str]:
    """Enables progress bars and colours when the launcher's output is a terminal."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        return {}
    size = shutil.get_terminal_size()
    return {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
