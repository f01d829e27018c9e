"""Column names: lookup of their values in a row, and messages for missing ones."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cdejax.config import ColumnsConfig
from cdejax.data.rows import excerpt

_SHOWN = 20


def lookup(row: Mapping[str, Any], name: str) -> Any:
    """The field called `name`, tried as a plain name first, then as a dotted path.

    Parts of a path are names, positions in a list (`pos.0.text`), or `*` for every item
    of a list (`negatives.*.text`), which returns a list.

    Raises:
      KeyError: there is no such field.
    """
    return row[name] if name in row else _inside(row, name.split("."))


def _inside(value: Any, parts: Sequence[str]) -> Any:
    if not parts:
        return value
    part, *rest = parts
    if isinstance(value, Mapping):
        return _inside(value[part], rest)
    if isinstance(value, (list, tuple)):
        if part == "*":
            return [_inside(item, rest) for item in value]
        if part.isdecimal() and int(part) < len(value):
            return _inside(value[int(part)], rest)
    raise KeyError(part)


def reaches(row: Mapping[str, Any], name: str) -> bool:
    """Whether the row has the field called `name`."""
    try:
        lookup(row, name)
    except KeyError:
        return False
    return True


def required(columns: ColumnsConfig) -> list[str]:
    """Names of the fields that every row must have: all except negatives."""
    fields = dataclasses.asdict(columns)
    del fields["negatives"]
    return [name for name in fields.values() if name is not None]


def top_columns(columns: ColumnsConfig, available: list[str], where: str) -> list[str]:
    """The columns of a table that hold the named fields, dotted names included.

    Raises:
      ValueError: a column is missing, or several have the same name.
    """
    if twice := sorted({f"`{a}`" for a in available if available.count(a) > 1}):
        raise ValueError(
            f"{where}: several columns are called {', '.join(twice)}; rename them."
        )
    wanted = [name for name in dataclasses.astuple(columns) if name is not None]
    tops = {n: n if n in available else n.split(".")[0] for n in wanted}
    missing = sorted(name for name, top in tops.items() if top not in available)
    if missing:
        raise ValueError(f"{where}: {missing_columns(missing, available)}")
    return list(dict.fromkeys(tops.values()))


def missing_columns(missing: Iterable[str], available: Sequence[str]) -> str:
    """A message with the missing columns, the available ones and likely matches."""
    names = [f"`{excerpt(name)[1:-1]}`" for name in available[:_SHOWN]]
    more = len(available) - len(names)
    others = f" and {more} more" if more > 0 else ""
    return (
        f"no column {', '.join(_with_nearest(name, available) for name in missing)}; "
        f"its columns: {', '.join(names) or 'none'}{others}. "
        "Name the right ones in `columns`."
    )


def _with_nearest(name: str, available: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.split(".")[0], available, n=1, cutoff=0.7)
    return f"`{name}`" + (f" (did you mean `{near[0]}`?)" if near else "")
