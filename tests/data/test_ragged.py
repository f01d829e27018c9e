"""Ragged rows on disk: what was appended is read back, also after a kill."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.data.ragged import (
    OFFSETS,
    VALUES,
    Ragged,
    RaggedWriter,
    TextRows,
    write_texts,
)

rows_of_ids = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=6), max_size=12)
slow_disk = settings(deadline=None)


@contextmanager
def new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def as_lists(rows: Ragged) -> list[list[int]]:
    return [row.tolist() for row in rows]


@slow_disk
@given(rows_of_ids, st.integers(1, 5), st.sampled_from([np.uint16, np.int32]))
def test_round_trip(rows: list[list[int]], block: int, dtype: type) -> None:
    with new_folder() as folder:
        with RaggedWriter(folder, dtype) as writer:
            for start in range(0, len(rows), block):
                part = rows[start : start + block]
                writer.append(np.array(row, dtype) for row in part)
            assert len(writer) == len(rows)
        stored = Ragged.open(folder)
        assert as_lists(stored) == rows == as_lists(Ragged.from_rows(rows, dtype))
        assert stored.values.dtype == dtype
        assert stored.lengths.tolist() == [len(row) for row in rows]


@slow_disk
@given(rows_of_ids, st.data())
def test_recovers_after_any_cut(rows: list[list[int]], data: st.DataObject) -> None:
    """Whatever prefix of each file reached the disk, whole rows survive, no others."""
    with new_folder() as folder:
        with RaggedWriter(folder, np.uint16) as writer:
            for row in rows:
                writer.append([np.array(row, np.uint16)])
        for name in (VALUES, OFFSETS):
            size = os.path.getsize(folder / name)
            os.truncate(folder / name, data.draw(st.integers(0, size), label=name))
        with RaggedWriter(folder, np.uint16) as writer:
            writer.append(np.array(row, np.uint16) for row in rows[len(writer) :])
        assert as_lists(Ragged.open(folder)) == rows


def test_killed_writer_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from cdejax.data.ragged import RaggedWriter\n"
        "writer = RaggedWriter(sys.argv[1], np.int32)\n"
        "for i in range(10**9):\n"
        "    writer.append([np.full(i % 7, i, np.int32)] * 2)\n"
        "    if i == 50: print('go', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with RaggedWriter(tmp_path, np.int32) as writer:
        kept = len(writer)
        writer.append([np.array([1, 2, 3], np.int32)])
    rows = Ragged.open(tmp_path)
    assert kept >= 102
    for i in (0, 1, 100, 101, kept - 2, kept - 1):
        assert rows[i].tolist() == [i // 2] * (i // 2 % 7)
    assert rows[-1].tolist() == [1, 2, 3]


def test_rows_cut_short_are_refused(tmp_path: Path) -> None:
    with RaggedWriter(tmp_path, np.int32) as writer:
        writer.append([np.arange(5), np.arange(3)])
    os.truncate(tmp_path / VALUES, 12)
    with pytest.raises(ValueError, match="3 values where the offsets say 8"):
        Ragged.open(tmp_path)
    with pytest.raises(ValueError, match="no ragged rows there"):
        Ragged.open(tmp_path / "gone")


def test_indexing() -> None:
    rows = Ragged.from_rows([[1, 2], [], [3]])
    assert rows[-1].tolist() == [3]
    assert rows[1].tolist() == []
    for index in (3, -4):
        with pytest.raises(IndexError):
            rows[index]


def test_padded() -> None:
    rows = Ragged.from_rows([[1, 2], [], [3, 4, 5]])
    padded = rows.padded(np.array([2, 0, 1, 2]), 4, fill=9)
    assert padded.tolist() == [[3, 4, 5, 9], [1, 2, 9, 9], [9] * 4, [3, 4, 5, 9]]
    assert rows.padded(np.array([], np.int64), 2).shape == (0, 2)
    with pytest.raises(ValueError, match="row 2 has 3 values, width is 2"):
        rows.padded(np.array([0, 2]), 2)


@slow_disk
@given(st.lists(st.text(), max_size=8), st.integers(1, 3))
def test_texts(texts: list[str], block: int) -> None:
    texts = [text.encode(errors="replace").decode() for text in texts]
    with new_folder() as folder:
        write_texts(folder, texts, block)
        stored = TextRows.open(folder)
        assert list(stored) == texts
        assert len(stored) == len(texts)
