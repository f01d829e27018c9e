"""Checks of user-supplied arrays, made before anything is computed from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float, Shaped

from cdejax.storage import artifacts
from cdejax.storage.guarded import open_npy, read_json_object

_FLOAT32 = np.finfo(np.float32)
_AGAIN = "Embed those texts again."
_SCALE = "Divide each row by its norm: only its direction counts."
_NOT_FINITE = "NaN or infinite values", _AGAIN
_TOO_LARGE = "values beyond those of float32, ±3.4e38", _SCALE
_ZERO = "only zeros, which have no direction", _AGAIN
_TOO_SMALL = "only values too small for float32, below 1.2e-38", _SCALE


def check_vectors(
    x: Float[np.ndarray, "rows dim"], name: str, first: int = 0
) -> Float[np.ndarray, "rows dim"]:
    """Returns `x` if every row has a direction in float32.

    Args:
      x: vectors, of any floating-point type.
      name: their name in the error message.
      first: row number of `x[0]` in the error message.

    Raises:
      ValueError: a row holds NaN, infinity or a value beyond float32's range, or only
        zeros, or only values below float32's smallest normal number. The message
        contains the value.
    """
    size = np.abs(x)
    largest = size.max(axis=1)  # NaN where a row holds one
    for bad, column, what in (
        (~np.isfinite(largest), (~np.isfinite(size)).argmax(axis=1), _NOT_FINITE),
        (largest > _FLOAT32.max, size.argmax(axis=1), _TOO_LARGE),
        (largest == 0, size.argmax(axis=1), _ZERO),
        (largest < _FLOAT32.smallest_normal, size.argmax(axis=1), _TOO_SMALL),
    ):
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"{name}: row {first + row} holds {what[0]} ({x[row, column[row]]!s} "
                f"in column {column[row]}; {int(bad.sum())} such rows in rows {first} "
                f"to {first + len(x) - 1}). {what[1]}"
            )
    return x


def check_file(
    path: str | Path, rows: int, side: str, pairs_fingerprint: str
) -> Float[np.ndarray, "rows dim"]:
    """Memory-maps a user's vectors after checking type, shape and origin.

    A file `PATH.json` with {"pairs": FINGERPRINT}, or the manifest of a vectors
    artefact in the same folder, names the pairs artefact they were made for.

    Raises:
      ValueError: not a plain `.npy`, not floating point, not 2-D, no columns, the wrong
        number of rows, or made for another pairs artefact.
    """
    path, where = Path(path), f"vectors.{side}: {path}"
    array = load_npy(path, where)
    if array.dtype.kind != "f":
        raise ValueError(
            f"{where}: dtype {array.dtype}; save it as float32 (or float16, float64)."
        )
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{where}: shape {array.shape}; it must be [rows, dim].")
    check_origin(path, where, pairs_fingerprint)
    if len(array) != rows:
        raise ValueError(
            f"{where}: {len(array)} rows, but the pairs artefact has {rows} {side}. "
            "Row i must be the vector of its text i."
        )
    return array


def load_npy(path: Path, where: str) -> Shaped[np.ndarray, "..."]:
    """Memory-maps a `.npy` file of plain numbers; ValueError for anything else."""
    try:
        return open_npy(path)
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(
            f"{where}: {reason}. Write one array of plain numbers with `numpy.save`."
        ) from None


def check_origin(path: Path, where: str, pairs_fingerprint: str) -> None:
    """Raises ValueError if a file or folder is marked as made for other pairs."""
    sidecar = path.with_name(path.name + ".json")
    manifest = (path if path.is_dir() else path.parent) / artifacts.MANIFEST
    if sidecar.is_file():
        origin = read_json_object(sidecar).get("pairs")
    elif manifest.is_file():
        spec = read_json_object(manifest).get("spec")
        origin = spec.get("pairs") if isinstance(spec, dict) else None
    else:
        return
    if origin not in (None, pairs_fingerprint):
        raise ValueError(
            f"{where}: made for another corpus (pairs {origin}, these are "
            f"{pairs_fingerprint}). Make it again from this pairs artefact."
        )
