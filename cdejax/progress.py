"""Progress bars of long work: done, rate, remaining time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from cdejax.distributed import is_main

LINE_SECONDS = 30.0
"""Where there is no terminal, a line is written instead, so often at most."""


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
        bars.TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    hidden = not (show and is_main())
    with bars.Progress(*columns, console=console, disable=hidden) as bar:
        task = bar.add_task(description, total=total, completed=done, rate="")
        written = time.monotonic()

        def advance(count: int) -> None:
            nonlocal written
            bar.update(task, advance=count)
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            bar.update(task, rate=_rate(speed))
            late = time.monotonic() - written >= LINE_SECONDS
            if late and not (hidden or console.is_terminal):
                written = time.monotonic()
                console.print(bar.make_tasks_table(bar.tasks))

        yield advance


def _rate(speed: float | None) -> str:
    """Work a second, with decimals where it is slow."""
    if not speed:
        return ""
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"
