"""Checks that the configuration shares: each raises ValueError naming the field."""

from __future__ import annotations

import re


def check_at_least(config: object, low: float, *names: str) -> None:
    """Refuses fields below `low`; None (no limit set) passes."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < low:
            raise ValueError(f"{name}: {value} is too small, at least {low} is needed")


def check_positive(config: object, *names: str) -> None:
    """Refuses fields that are not positive."""
    for name in names:
        value = getattr(config, name)
        if value <= 0:
            raise ValueError(f"{name}: {value} must be greater than 0")


def check_share(config: object, *names: str) -> None:
    """Refuses fields outside 0 <= value < 1."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name}: {value} must be at least 0 and less than 1")


def check_given(config: object, reason: str, *names: str) -> None:
    """Refuses empty fields."""
    for name in names:
        if not getattr(config, name):
            raise ValueError(f"{name}: needed {reason}")


def check_folder_name(field_name: str, name: str) -> None:
    """Refuses names that cannot be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{field_name}: {name!r} becomes a folder: use letters, digits, `.`, `_` "
            "and `-` only"
        )
