"""Progress bars of long work: done, rate, remaining time."""

from __future__ import annotations

import collections
import contextlib
import datetime
import math
import time
from collections.abc import Callable, Iterator

from cdejax.runtime.processes import is_main

LINE_SECONDS = 30.0
"""Where there is no terminal, a line is written instead, so often at most."""
_RECENT, _ADVANCES = 30.0, 20
"""A rate is that of so many seconds and advances, whichever go further back."""


@contextlib.contextmanager
def progress(
    description: str, total: int | None, done: int = 0, *, show: bool = True
) -> Iterator[Callable[[int], None]]:
    """Shows a bar on standard error; yields a function that advances it.

    The rate counts this run's work only: what was `done` before does not flatter it.
    Among several processes only process 0 shows a bar. Where standard error is no
    terminal, the bar is written as a line every `LINE_SECONDS` and at the end.
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
    """The recent rate of work whose single pieces may take minutes."""

    def __init__(self, now: float):
        self._seen = collections.deque([(now, 0)], maxlen=1000)
        self._started = False

    def update(self, count: int, now: float) -> float | None:
        """Work a second, after some more of it."""
        seen = self._seen
        seen.append((now, seen[-1][1] + count))
        if len(seen) == 3 and not self._started:
            self._started = True
            seen.popleft()  # what is done first often waits for a compilation
        while len(seen) > _ADVANCES + 1 and now - seen[1][0] >= _RECENT:
            seen.popleft()
        (before, less), (after, more) = seen[0], seen[-1]
        return (more - less) / (after - before) if after > before else None


def _rate(speed: float | None) -> str:
    """Work a second, with decimals where it is slow."""
    if not speed:
        return ""
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"


def _remaining_time(work: int, speed: float | None) -> str:
    """Hours, minutes and seconds that some more work takes."""
    if not speed:
        return ""
    return str(datetime.timedelta(seconds=math.ceil(max(work, 0) / speed)))
