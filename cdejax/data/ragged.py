"""Rows of different lengths in two memory-mapped files: values and offsets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

VALUES, OFFSETS = "values.bin", "offsets.bin"


class Ragged(Sequence[np.ndarray]):
    """Read-only rows `values[offsets[i]:offsets[i + 1]]`."""

    def __init__(
        self,
        values: Shaped[np.ndarray, "total"],
        offsets: Int[np.ndarray, "rows_plus_1"],
    ):
        self.values = values
        self.offsets = offsets

    @classmethod
    def open(cls, folder: str | Path) -> Ragged:
        """Memory-maps a folder of `RaggedWriter`; ValueError if it is incomplete."""
        folder = Path(folder)
        dtype_file = folder / "dtype"
        if not dtype_file.is_file():
            raise ValueError(f"{folder}: no ragged rows there (file `dtype` missing)")
        dtype = _dtype(dtype_file)
        offsets = _map(folder / OFFSETS, np.dtype(np.int64))
        values = _map(folder / VALUES, dtype)
        if len(offsets) == 0 or offsets[-1] != len(values):
            expected = int(offsets[-1]) if len(offsets) else "some"
            raise ValueError(
                f"{folder}: {len(values)} values where the offsets say {expected}; "
                "the folder was cut short, write it again"
            )
        return cls(values, offsets)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[int] | Shaped[np.ndarray, "length"]],
        dtype: type = np.int32,
    ) -> Ragged:
        """Builds the rows in memory."""
        arrays = [np.asarray(row, dtype) for row in rows]
        lengths = np.array([len(row) for row in arrays], np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
        return cls(values.astype(dtype), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:  # type: ignore[override]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Int[np.ndarray, "rows"]:
        """Length of every row."""
        return np.diff(self.offsets)

    def joined(self, rows: Int[np.ndarray, "batch"]) -> Shaped[np.ndarray, "values"]:
        """The rows, concatenated."""
        rows = np.asarray(rows, np.int64)
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        skipped = starts - np.cumsum(lengths) + lengths
        return self.values[np.repeat(skipped, lengths) + np.arange(lengths.sum())]

    def padded(
        self, rows: Int[np.ndarray, "batch"], width: int, fill: int = 0
    ) -> Int[np.ndarray, "batch width"]:
        """The rows as a matrix, right-padded with `fill`.

        Raises:
          ValueError: a row is longer than `width` (rows are never truncated silently).
        """
        rows = np.asarray(rows, np.int64)
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        if len(rows) and lengths.max() > width:
            worst = int(rows[lengths.argmax()])
            raise ValueError(
                f"row {worst} has {lengths.max()} values, width is {width}"
            )
        columns = np.arange(width)
        inside = columns < lengths[:, None]
        out = np.full((len(rows), width), fill, self.values.dtype)
        out[inside] = self.values[(starts[:, None] + columns)[inside]]
        return out


class TextRows(Sequence[str]):
    """Ragged rows of UTF-8 bytes, read as strings."""

    def __init__(self, rows: Ragged):
        self.rows = rows

    @classmethod
    def open(cls, folder: str | Path) -> TextRows:
        """Memory-maps a folder written by `write_texts`."""
        return cls(Ragged.open(folder))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return self.rows[row].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class RaggedWriter:
    """Appends rows to a folder; flushed rows survive a kill.

    Opened again, it continues after the last complete row (`len(writer)` rows exist).
    """

    def __init__(self, folder: str | Path, dtype: np.dtype | type):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.dtype = np.dtype(dtype)
        (folder / "dtype").write_text(self.dtype.str)
        self._values = open(folder / VALUES, "ab")  # noqa: SIM115 (closed in close)
        self._offsets = open(folder / OFFSETS, "ab")  # noqa: SIM115
        self._recover(folder)

    def _recover(self, folder: Path) -> None:
        """Truncates both files to the last row that is complete in both."""
        stored = os.path.getsize(folder / VALUES) // self.dtype.itemsize
        offsets = _map(folder / OFFSETS, np.dtype(np.int64))
        whole = int(np.searchsorted(offsets, stored, side="right"))
        self.rows, self._end = (
            max(whole - 1, 0),
            int(offsets[whole - 1]) if whole else 0,
        )
        del offsets
        self._values.truncate(self._end * self.dtype.itemsize)
        self._offsets.truncate((self.rows + 1) * 8)
        if whole == 0:
            self._offsets.truncate(0)
            self._offsets.write(np.int64(0).tobytes())

    def __len__(self) -> int:
        return self.rows

    def append(self, rows: Iterable[Shaped[np.ndarray, "length"]]) -> None:
        """Appends rows and flushes them: values first, then their offsets."""
        arrays = [np.asarray(row, self.dtype) for row in rows]
        if not arrays:
            return
        self._values.write(np.concatenate(arrays).tobytes())
        self._values.flush()
        ends = self._end + np.cumsum([len(row) for row in arrays], dtype=np.int64)
        self._offsets.write(ends.astype(np.int64).tobytes())
        self._offsets.flush()
        self.rows += len(arrays)
        self._end = int(ends[-1])

    def close(self) -> None:
        """Writes everything to disk."""
        for stream in (self._values, self._offsets):
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()

    def __enter__(self) -> RaggedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_texts(folder: str | Path, texts: Iterable[str], block: int = 4096) -> None:
    """Writes strings as ragged UTF-8 rows, `block` at a time."""
    with RaggedWriter(folder, np.uint8) as writer:
        pending: list[np.ndarray] = []
        for text in texts:
            pending.append(np.frombuffer(text.encode(), np.uint8))
            if len(pending) == block:
                writer.append(pending)
                pending.clear()
        writer.append(pending)


def _dtype(file: Path) -> np.dtype:
    text = file.read_text(errors="replace").strip()
    try:
        return np.dtype(text)
    except TypeError:
        raise ValueError(
            f"{file}: {text!r:.40} is no NumPy dtype; the folder was changed, write it "
            "again"
        ) from None


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    """Memory-maps the complete items of a file (an empty file cannot be mapped)."""
    items = path.stat().st_size // dtype.itemsize if path.is_file() else 0
    if items == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r", shape=(items,))
