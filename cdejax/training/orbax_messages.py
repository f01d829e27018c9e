"""Silences Orbax's tracebacks of errors that `Checkpoints` reports in one line."""

from __future__ import annotations

import functools
import logging
import sys


@functools.cache
def silence_tracebacks() -> None:
    """Filters the loggers of Orbax and asyncio, and hides late write failures."""
    logging.getLogger("absl").addFilter(_is_not_from_orbax)
    logging.getLogger("asyncio").addFilter(_was_retrieved)
    _hide_late_writes()


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    """Whether to log: Orbax logs tracebacks of what it raises, thread by thread."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _was_retrieved(record: logging.LogRecord) -> bool:
    """Whether to log: of several failed writes, Orbax awaits only the first."""
    return "exception was never retrieved" not in record.getMessage()


def _hide_late_writes() -> None:
    """Hides tracebacks of writes that end after one has failed.

    Orbax has closed their event loop by then, and TensorStore prints a traceback for
    each. `Checkpoints` reports once why the checkpoint could not be written.
    """
    shown = sys.unraisablehook

    def show(late: sys.UnraisableHookArgs) -> None:
        if str(late.exc_value) != "Event loop is closed":
            shown(late)

    sys.unraisablehook = show
