"""Reading `config.json`: sizes by name, and a refusal of what we do not compute."""

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
    """A dataclass from the keys that are its fields, or that `keys` maps them to.

    Raises:
      ValueError: a needed key is missing, a value is not what `typed` asks for, or a
        dropout, which we do not compute, is no probability.
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
    """The key's value, as `typed` has it; the default where it is absent or null."""
    value = raw.get(key)
    return default if value is None else check_value(value, default, key, source)


def check_value(value: Any, example: Any, key: str, source: str) -> Any:
    """`value` if it is of the example's type and a model can compute with it.

    Numbers are in the range that their key asks for: token ids (`…_id`) start at 0,
    other whole numbers are sizes and start at 1, dropouts are probabilities below 1,
    other floats (an int may stand for one) are finite and positive in float32.

    Args:
      value: from a JSON file.
      example: any value of the type.
      key: the value's name in the file.
      source: the file, for messages.

    Raises:
      ValueError: it is not; names file, key, value and what is needed.
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
    """Least and greatest number that a key may have, and the same in words.

    NaN is in no range.
    """
    if kind is int:
        least, most = (0 if key.endswith("_id") else 1), int(_INT32.max)
        return least, most, f"a whole number from {least} to {most}"
    if _DROPOUT.fullmatch(key):
        return 0.0, 1.0 - float(_FLOAT32.epsneg), "a probability from 0 to below 1"
    # Devices flush what is smaller than float32's normal numbers to 0.
    least, most = float(_FLOAT32.tiny), float(_FLOAT32.max)
    return least, most, "a finite number above 0 (in float32)"


def rotary_base(
    raw: Raw, rope: Raw, place: str, old: str, default: float, source: str
) -> float:
    """The base of rotary positions, which transformers 5 keeps in an object.

    Args:
      raw: the whole `config.json`.
      rope: the object with `rope_theta`, if any.
      place: its name.
      old: the key of `raw` that transformers 4 uses instead.
      default: the base where neither is said.
      source: the file, for messages.
    """
    if rope.get("rope_theta") is None:
        return optional_value(raw, old, default, source)
    return check_value(rope["rope_theta"], default, "rope_theta", f"{source}: {place}")


def require_values(raw: Raw, fixed: Raw, source: str) -> None:
    """ValueError unless every key that is there (and not null) has the fixed value."""
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
    """Equality for which true is no 1."""
    return value == fixed and isinstance(value, bool) == isinstance(fixed, bool)
