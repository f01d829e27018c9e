"""Texts stand in the arrays of their chunks, each once and whole."""

import numpy as np
import pytest

from cdejax.data.ragged import Ragged
from cdejax.training.filling import concatenate_devices, fill_chunks, row_lengths
from cdejax.training.packed_layout import plan_packed
from cdejax.training.padded_layout import plan_padded
from cdejax.training.rows import PackedRows

LENGTHS = np.array([[9, 3, 1, 7, 12, 2, 5], [4, 4, 11, 1, 6, 8, 3]])
"""Tokens of queries and of documents."""


@pytest.fixture
def stores():
    """Token ids, none of which is 0 or occurs twice."""
    ids = np.arange(1, LENGTHS.sum() + 1, dtype=np.int32)
    ends = np.split(ids, np.cumsum(LENGTHS.ravel())[:-1])
    return [Ragged.from_rows(ends[:7]), Ragged.from_rows(ends[7:])]


def text_at(chunks, layout, at):
    """The tokens whose vector comes out at a place, with the text's number and side."""
    number = 0
    while at >= layout.shapes[number].vectors:
        at -= layout.shapes[number].vectors
        number += 1
    group, shape = chunks[number].rows, layout.shapes[number]
    row, slot = divmod(at, shape.slots)
    ids = group.ids.reshape(-1, shape.width)[row]
    facts = (group.numbers.reshape(-1)[at], group.sides.reshape(-1)[at])
    if isinstance(group, PackedRows):
        return ids[group.segments.reshape(-1, shape.width)[row] == slot + 1], *facts
    return ids[: group.lengths.reshape(-1)[row]], *facts


@pytest.mark.parametrize("plan", [plan_packed, plan_padded])
def test_every_text_is_found_where_its_vector_comes_out(plan, stores):
    lengths = -np.sort(-LENGTHS.ravel())[None]
    layout = plan([lengths], chunk_tokens=16)
    rows = [np.array([6, 0, 3, 1, 5, 2, 4]), np.arange(7)]
    numbers = [100 + rows[0], 200 + rows[1]]
    chunks, at = fill_chunks(layout, stores, rows, numbers)
    assert len(set(at.tolist())) == len(at) == 14
    wanted = [(side, row) for side in (0, 1) for row in rows[side]]
    for place, (side, row) in zip(at, wanted, strict=True):
        tokens, number, of = text_at(chunks, layout, int(place))
        np.testing.assert_array_equal(tokens, stores[side][row])
        assert (number, of) == ((100, 200)[side] + row, side)
    real = sum(int(np.count_nonzero(group.rows.ids)) for group in chunks)
    assert real == LENGTHS.sum()  # and nothing else stands there


def test_devices_stand_end_to_end(stores):
    lengths = -np.sort(-LENGTHS[:1])
    layout = plan_packed([lengths], chunk_tokens=16)
    rows = np.arange(7)
    (one, _), (other, _) = (
        fill_chunks(layout, stores[:1], [rows[::step]], [rows[::step]])
        for step in (1, -1)
    )
    (both,) = concatenate_devices([one, other])
    ids = np.concatenate([one[0].rows.ids, other[0].rows.ids])
    np.testing.assert_array_equal(both.rows.ids, ids)
    np.testing.assert_array_equal(row_lengths(stores[0], rows), LENGTHS[0])
