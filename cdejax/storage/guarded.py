"""Files that others wrote, read within bounds: text, JSON and `.npy` arrays.

A damaged or hostile file ends in a ValueError of one line that names it. What a parser
would need is bounded before it begins: size, nesting, digits of a number. YAML has the
same bounds, in `cdejax.config.yaml`.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

MAX_DEPTH = 64
"""Mappings and lists inside each other at most."""
MAX_DIGITS = 300
"""Digits of a whole number at most: as many as fit into a float."""
MAX_JSON = 1 << 26
"""Bytes of a JSON file at most. Values in memory take up to 24 times as much."""
_MAX_NPY_HEADER = 10_000
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(path: str | Path, limit: int = MAX_JSON) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
      ValueError: no such file, more than `limit` bytes, or another encoding.
    """
    try:
        with open(path, "rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > limit:
        raise ValueError(
            f"{path}: more than {limit:,} bytes, too large for a file of its kind"
        )
    if content.startswith(_UTF16):
        raise ValueError(f"{path}: UTF-16 text; convert the file to UTF-8")
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}:{line}: not UTF-8 text (byte {error.start}); convert the file"
        ) from None


def parse_json(
    text: str,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The JSON value in a text.

    Raises:
      ValueError: not JSON, nested too deeply, or a number of too many digits; the
        message is the reason alone.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=object_pairs_hook, parse_int=_whole_number
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def read_json(path: str | Path, limit: int = MAX_JSON) -> Any:
    """Reads a JSON file; ValueError names the file if that cannot be done."""
    text = read_text(path, limit)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None


def read_json_object(path: str | Path) -> dict[str, Any]:
    """Reads a JSON file that holds an object; ValueError if it holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object was expected, not {value!r:.60}")
    return value


def open_npy(
    path: str | Path, mode: Literal["r", "r+"] = "r"
) -> Shaped[np.ndarray, "..."]:
    """Maps a `.npy` file of plain numbers into memory.

    The header is checked before anything is mapped, so that memory does not depend on
    what it claims. An array without elements cannot be mapped and is made instead.

    Raises:
      ValueError: no such file, not a `.npy`, a damaged header, pickled objects, or
        fewer bytes than the header says.
    """
    try:
        with open(path, "rb") as stream:
            head = io.BytesIO(stream.read(12 + _MAX_NPY_HEADER))
            size = stream.seek(0, io.SEEK_END)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    shape, fortran, dtype = _npy_header(head, path)
    if dtype.hasobject:
        raise ValueError(f"{path}: holds pickled objects")
    needed = head.tell() + math.prod(shape) * dtype.itemsize
    if size < needed:
        raise ValueError(
            f"{path}: {shape} of {dtype} takes {needed:,} bytes, the file has {size:,}"
        )
    order = "F" if fortran else "C"
    with _one_line(path):
        if needed == head.tell():
            return np.empty(shape, dtype, order)
        return np.memmap(path, dtype, mode, head.tell(), shape, order)


def _npy_header(
    head: io.BytesIO, path: str | Path
) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and dtype; leaves `head` where the numbers begin."""
    magic = head.getvalue()[:6]
    if magic != b"\x93NUMPY":
        kind = "an .npz archive" if magic[:2] == b"PK" else "not a .npy file"
        raise ValueError(f"{path}: {kind}")
    with _one_line(path):
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            found = np.lib.format.read_array_header_1_0(head)
        elif version == (2, 0):
            found = np.lib.format.read_array_header_2_0(head)
        else:  # 3.0 differs in the names of fields, which plain numbers do not have
            raise ValueError(f"version {version} of the format")
        if min(found[0], default=0) < 0:
            raise ValueError(f"shape {found[0]}")
        return found


@contextlib.contextmanager
def _one_line(path: str | Path) -> Iterator[None]:
    """NumPy's reader of headers and maps raises whatever Python's parser does."""
    try:
        yield
    except Exception as error:
        reason = str(error).split("\n")[0][:200] or type(error).__name__
        raise ValueError(f"{path}: damaged header ({reason})") from None


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits: {digits[:20]}…")
    return int(digits)


def _check_depth(value: Any) -> None:
    """ValueError if lists and mappings lie too deep; without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    if level:
        raise ValueError(_TOO_DEEP)
