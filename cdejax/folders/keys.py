"""Keys of a model folder's files: which are applied, harmless or refused.

`tokenizer_keys` and `model_keys` have a table for each file, with every key that
transformers or sentence-transformers act on. A refused key is named in the error. Keys
in no table are those that neither library acts on; they are ignored. The tables follow
transformers 5.24 and sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Act = Literal["applied", "harmless", "refused"]


@dataclass(frozen=True)
class Key:
    """Keys of one file that are treated the same way."""

    names: tuple[str, ...]
    act: Act
    note: str
    """What applied keys do, why others are harmless, how to remedy refused ones."""
    neutral: tuple[Any, ...] = (None,)
    """Values with which a refused key has no effect, so that it is accepted."""


def entry(names: str, act: Act, note: str, neutral: tuple[Any, ...] = (None,)) -> Key:
    """Makes a table's entry from key names separated by spaces."""
    return Key(tuple(names.split()), act, note, neutral)


def key_names(table: tuple[Key, ...], act: Act | None = None) -> set[str]:
    """All keys of a table, or those with the given `act`."""
    return {n for key in table if act in (None, key.act) for n in key.names}


def check_keys(
    raw: Mapping[str, Any],
    table: tuple[Key, ...],
    source: str,
    *,
    closed: bool = False,
) -> None:
    """Refuses the keys of a file that its table refuses.

    Args:
      raw: content of the file.
      table: the table of that file.
      source: name of the file, for messages.
      closed: also refuse keys that are not in the table.

    Raises:
      ValueError: a refused key has a value; names file, key, value and remedy.
    """
    for key in table:
        for name in key.names if key.act == "refused" else ():
            if raw.get(name) not in key.neutral:
                raise ValueError(f"{source}: {name} is {raw[name]!r:.80}: {key.note}")
    unknown = sorted(set(raw) - key_names(table)) if closed else []
    if unknown:
        raise ValueError(
            f"{source}: {unknown[0]} is {raw[unknown[0]]!r:.80}, which cdejax does not "
            f"know; remove it (known are {', '.join(sorted(key_names(table)))})"
        )
