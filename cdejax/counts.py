"""Whole numbers that callers give."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuses what is no whole number from `least` on, by the argument's name.

    Raises:
      ValueError: it is another number, or none.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        given = value if whole else repr(value)
        raise ValueError(f"{name} {given}: give a whole number, {least} or more")
