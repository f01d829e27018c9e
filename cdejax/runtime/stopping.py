"""Stopping a run on a signal: after its current step, with a checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

from cdejax.runtime.processes import processes

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Raised when a run has stopped on a signal, after saving a checkpoint.

    Args:
      number: number of the signal; the exit code is 128 more, as in a shell.
      words: what was done, and how to resume.
    """

    def __init__(self, number: int, words: str):
        super().__init__(f"stopped by {signal.Signals(number).name} {words}")
        self.code = 128 + number


class StopRequest:
    """A request to stop, which a run checks after every step."""

    signal: int | None = None
    """Number of the signal that was received, if any."""


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turns Ctrl-C and SIGTERM into a request; a second one exits at once.

    A thread reads the signals: Python's own handlers would wait until the main thread
    returns from the compiler or a device. Signals are left alone in runs of several
    processes, which end together, in threads other than the main one, and if the
    process ignores them.
    """
    request = StopRequest()
    main = threading.current_thread() is threading.main_thread()
    if processes() > 1 or not main:
        yield request
        return
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    reader = threading.Thread(
        target=_read_signals, args=(ends[0], request), daemon=True
    )
    reader.start()
    before = {n: signal.getsignal(n) for n in _SIGNALS}
    before = {n: old for n, old in before.items() if old != signal.SIG_IGN}
    descriptor = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    try:
        for number in before:
            signal.signal(number, lambda *_: None)
        yield request
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(descriptor)
        os.close(ends[1])  # which ends the thread
        reader.join()
        os.close(ends[0])


def _read_signals(pipe: int, request: StopRequest) -> None:
    """Reads signal numbers until the pipe is closed."""
    while number := os.read(pipe, 1):
        if number[0] not in _SIGNALS:
            continue
        name = signal.Signals(number[0]).name
        if request.signal is not None:
            sys.stderr.write(f"cdejax: ended at once by a second {name}\n")
            sys.stderr.flush()
            os._exit(128 + number[0])
        request.signal = number[0]
        _log.warning("%s: the run ends after this step, with a checkpoint", name)
