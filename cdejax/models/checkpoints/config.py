"""Reads `config.json`: checks values and refuses variants that are not supported."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

Raw = Mapping[str, Any]
C = TypeVar("C")
V = TypeVar("V")

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_FLOAT32 = np.finfo(np.float32)
_INT32 = np.iinfo(np.int32)
_DROPOUT = re.compile(r"(\w+_)?(dropout|pdrop)(_prob|_rate)?")
_SAID = {bool: "true or false", str: "a text", dict: "an object", list: "a list"}


def read_fields(
    kind: type[C],
    raw: Raw,
    source: str,
    keys: Mapping[str, str] | None = None,
    needed: Iterable[str] = SIZES,
) -> C:
    """Builds a dataclass from the values of a `config.json`.

    Args:
      kind: the dataclass; fields that are absent or null keep their defaults.
      raw: the contents of the file.
      source: the file, for messages.
      keys: key of each field whose key is not its name.
      needed: fields whose keys must be present.

    Raises:
      ValueError: a needed key is missing, `check_value` refuses a value, or a dropout
        (which is read but not used) is not a probability.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = {f.name: (keys or {}).get(f.name, f.name) for f in fields}
    missing = [names[size] for size in needed if raw.get(names[size]) is None]
    if missing:
        raise ValueError(f"{source}: keys missing: {', '.join(missing)}")
    for key in filter(_DROPOUT.fullmatch, raw):
        if not isinstance(raw[key], bool | list | dict):  # some other setting
            optional_value(raw, key, 0.0, source)
    values = {
        field.name: check_value(raw[key], field.default, key, source)
        for field in fields
        if raw.get(key := names[field.name]) is not None
    }
    return kind(**values)


def optional_value(raw: Raw, key: str, default: V, source: str) -> V:
    """The key's value, checked by `check_value`, or the default if absent or null."""
    value = raw.get(key)
    return default if value is None else check_value(value, default, key, source)


def check_value(value: Any, example: Any, key: str, source: str) -> Any:
    """Returns `value` if it has the example's type and is in its key's range.

    Token ids (`…_id`) start at 0; other integers are sizes and start at 1. Dropouts are
    probabilities below 1; other floats (which may be written as integers) are finite
    and positive in float32.

    Args:
      value: a value from a JSON file.
      example: any value of the required type.
      key: the value's key in the file.
      source: the file, for messages.

    Raises:
      ValueError: the type or range is wrong; the message names file, key, value and
        what is needed.
    """
    kind = type(example)
    kinds = (int, float) if kind is float else kind
    fits = isinstance(value, kinds) and isinstance(value, bool) == (kind is bool)
    if kind in (int, float):
        least, most, needed = _range(kind, key)
        fits = fits and least <= value <= most
    else:
        needed = _SAID[kind]
    if not fits:
        raise ValueError(f"{source}: {key} is {value!r:.60}, not {needed}")
    return kind(value)


def _range(kind: type, key: str) -> tuple[float, float, str]:
    """Minimum and maximum of a key's value, and the range in words.

    NaN is never in range.
    """
    if kind is int:
        least, most = (0 if key.endswith("_id") else 1), int(_INT32.max)
        return least, most, f"a whole number from {least} to {most}"
    if _DROPOUT.fullmatch(key):
        return 0.0, 1.0 - float(_FLOAT32.epsneg), "a probability from 0 to below 1"
    # Devices flush float32's subnormal numbers to 0.
    least, most = float(_FLOAT32.tiny), float(_FLOAT32.max)
    return least, most, "a finite number above 0 (in float32)"


def rotary_base(
    raw: Raw, rope: Raw, place: str, old: str, default: float, source: str
) -> float:
    """The base of rotary positions, from the keys of transformers 4 or 5.

    Args:
      raw: the whole `config.json`.
      rope: the object in which transformers 5 stores `rope_theta`; may be empty.
      place: the name of that object.
      old: the key of `raw` that transformers 4 uses instead.
      default: the base if neither is present.
      source: the file, for messages.
    """
    if rope.get("rope_theta") is None:
        return optional_value(raw, old, default, source)
    return check_value(rope["rope_theta"], default, "rope_theta", f"{source}: {place}")


def require_values(raw: Raw, fixed: Raw, source: str) -> None:
    """Raises ValueError if a key is present, not null, and has another value."""
    faults = [
        f"{key}: {raw[key]!r} (we compute {value!r})"
        for key, value in fixed.items()
        if key in raw and raw[key] is not None and not _equal(raw[key], value)
    ]
    if faults:
        raise ValueError(
            f"{source}: a variant that cdejax does not compute: {'; '.join(faults)}"
        )


def _equal(value: Any, fixed: Any) -> bool:
    """Equality that distinguishes true from 1."""
    return value == fixed and isinstance(value, bool) == isinstance(fixed, bool)
