"""Progress bars with rate and remaining time."""

from __future__ import annotations

import collections
import contextlib
import datetime
import math
import time
from collections.abc import Callable, Iterator

from cdejax.runtime.processes import is_main

LINE_SECONDS = 30.0
"""Interval of the lines that are written instead if there is no terminal."""
_RECENT, _ADVANCES = 30.0, 20
"""The rate is measured over at least this many seconds and advances."""


@contextlib.contextmanager
def progress(
    description: str, total: int | None, done: int = 0, *, show: bool = True
) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on standard error; yields a function that advances it.

    The rate counts only the work of this run, not what was `done` before. Of several
    processes, only process 0 shows a bar. If standard error is not a terminal, the bar
    is written as a line every `LINE_SECONDS` and at the end.
    """
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[rate]}"),
        bars.TextColumn("{task.fields[left]}"),
    )
    console = Console(stderr=True)
    hidden = not (show and is_main())
    with bars.Progress(*columns, console=console, disable=hidden) as bar:
        begun = {"total": total, "completed": done, "rate": "", "left": ""}
        task = bar.add_task(description, **begun)
        written = time.monotonic()
        speed = _Speed(written)

        def advance(count: int) -> None:
            nonlocal written, done
            now = time.monotonic()
            done += count
            rate = speed.update(count, now)
            left = "" if total is None else _remaining_time(total - done, rate)
            bar.update(task, advance=count, rate=_rate(rate), left=left)
            late = now - written >= LINE_SECONDS
            if late and not (hidden or console.is_terminal):
                written = now
                console.print(bar.make_tasks_table(bar.tasks))

        yield advance


class _Speed:
    """Recent rate of work whose single advances may take minutes."""

    def __init__(self, now: float):
        self._seen = collections.deque([(now, 0)], maxlen=1000)
        self._started = False

    def update(self, count: int, now: float) -> float | None:
        """Adds work done and returns the rate per second."""
        seen = self._seen
        seen.append((now, seen[-1][1] + count))
        if len(seen) == 3 and not self._started:
            self._started = True
            seen.popleft()  # the first advance often includes a compilation
        while len(seen) > _ADVANCES + 1 and now - seen[1][0] >= _RECENT:
            seen.popleft()
        (before, less), (after, more) = seen[0], seen[-1]
        return (more - less) / (after - before) if after > before else None


def _rate(speed: float | None) -> str:
    """A rate as text, with decimals if it is low."""
    if not speed:
        return ""
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"


def _remaining_time(work: int, speed: float | None) -> str:
    """Remaining hours, minutes and seconds as text."""
    if not speed:
        return ""
    return str(datetime.timedelta(seconds=math.ceil(max(work, 0) / speed)))
