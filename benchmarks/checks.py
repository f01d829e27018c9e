"""What a command line may say; all else ends in one line, before any measuring."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from cdejax.storage.artifacts import explain_os_error

_MOST = 2**31 - 1
"""Seeds and sizes are 32-bit numbers in JAX."""


def refuse(message: str) -> NoReturn:
    """Ends the program as argparse does: one line on stderr, exit code 2."""
    print(message, file=sys.stderr)
    raise SystemExit(2)


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: whole numbers from `least` on."""

    def parse(text: str) -> int:
        with suppress(ValueError):
            if least <= (number := int(text)) <= _MOST:
                return number
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a whole number from {least} on, at most {_MOST}"
        )

    return parse


positive = at_least(1)


def probability(text: str) -> float:
    """An argparse type: numbers from 0 to below 1."""
    with suppress(ValueError):
        if 0 <= (number := float(text)) < 1:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0 to below 1")


def seconds(text: str) -> float:
    """An argparse type: a time above 0."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")


def writable(text: str) -> Path:
    """An argparse type: a folder, which is made if it is missing."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: {error.strerror}; give a folder that is there or can be made"
        ) from None
    return Path(text)


def check_least(options: Any, least: int, *names: str) -> None:
    """Ends the program if a number, or one of several, is below `least`."""
    for name in names:
        value = getattr(options, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(n is not None and n < least for n in numbers):
            given = " ".join(map(str, numbers))
            refuse(f"--{name.replace('_', '-')} {given}: give {least} or more")


def check_peer(peer: str, **packages: str) -> None:
    """Ends the program if a module that a peer needs is missing.

    Modules are looked for, not imported: that might change what is measured of ours.

    Args:
      peer: as the command line calls it.
      packages: each module, and the package that has it.
    """
    missing = [name for module, name in packages.items() if find_spec(module) is None]
    if missing:
        refuse(
            f"--peer {peer}: {' and '.join(missing)} is not installed; "
            f"`pip install {' '.join(missing)}`, or give --peer none"
        )


@contextmanager
def told_of(option: str) -> Iterator[None]:
    """Ends the program with one line where an option's file or folder is no good."""
    try:
        yield
    except OSError as error:
        refuse(f"{option} {explain_os_error(error)}")
    except ValueError as error:
        refuse(f"{option} {error}")
