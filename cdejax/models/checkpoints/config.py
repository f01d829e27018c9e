"""Reading `config.json`: sizes by name, and a refusal of what we do not compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Raw = Mapping[str, Any]
C = TypeVar("C")

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def fill(
    kind: type[C],
    raw: Raw,
    source: str,
    keys: Mapping[str, str] | None = None,
    needed: Iterable[str] = SIZES,
) -> C:
    """A dataclass from the keys that are its fields, or that `keys` maps them to.

    Raises:
      ValueError: a needed key is missing or below 1, or a value has another type than
        the field's default.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = {f.name: (keys or {}).get(f.name, f.name) for f in fields}
    missing = [names[size] for size in needed if raw.get(names[size]) is None]
    if missing:
        raise ValueError(f"{source}: keys missing: {', '.join(missing)}")
    values = {
        field.name: typed(raw[key], field.default, key, source)
        for field in fields
        if raw.get(key := names[field.name]) is not None
    }
    small = [size for size in needed if size in values and values[size] < 1]
    if small:
        said = ", ".join(f"{names[size]} is {values[size]}" for size in small)
        raise ValueError(f"{source}: {said}, not 1 or more")
    return kind(**values)


def typed(value: Any, example: Any, key: str, source: str) -> Any:
    """`value` if it is of the example's type (an int may stand for a float)."""
    wanted = (int, float) if isinstance(example, float) else type(example)
    fits = isinstance(value, wanted) and isinstance(value, bool) == isinstance(
        example, bool
    )
    if not fits:
        kind = type(example).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        raise ValueError(f"{source}: {key} is {value!r}, not {article} {kind}")
    return type(example)(value)


def require(raw: Raw, fixed: Raw, source: str) -> None:
    """ValueError unless every key that is there (and not null) has the fixed value."""
    faults = [
        f"{key}: {raw[key]!r} (we compute {value!r})"
        for key, value in fixed.items()
        if key in raw and raw[key] != value and raw[key] is not None
    ]
    if faults:
        raise ValueError(
            f"{source}: a variant that cdejax does not compute: {'; '.join(faults)}"
        )
