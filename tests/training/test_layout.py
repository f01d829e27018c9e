"""Planned rows: every text has a place of its own, and little is padding."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.training.packed_layout import plan_packed
from cdejax.training.padded_layout import plan_padded
from cdejax.training.row_widths import best_widths

lengths = st.lists(st.integers(1, 200), min_size=8, max_size=8)
steps_of = st.lists(lengths, min_size=1, max_size=6)


def as_steps(steps, devices=1):
    """[devices, texts], longest first, dealt in turn."""
    ordered = [-np.sort(-np.array(step)) for step in steps]
    return [step.reshape(-1, devices).T for step in ordered]


def plans(steps, tokens):
    return [
        plan_packed(steps, tokens),
        plan_padded(steps, tokens, front=0),
        plan_padded(steps, tokens, front=30, max_widths=3),
    ]


@settings(max_examples=60, deadline=None)
@given(steps_of, st.integers(1, 2000), st.sampled_from([1, 2, 4]))
def test_every_text_has_a_place_of_its_own(steps, tokens, devices):
    steps = as_steps(steps, devices)
    for layout in plans(steps, tokens):
        for step, device in itertools.product(steps, range(devices)):
            mine = step[device]
            places = layout.arrange(mine)
            taken = set()
            for i, length in enumerate(mine):
                shape = layout.shapes[places.group[i]]
                assert 0 <= places.row[i] < shape.rows * shape.chunks
                assert places.row[i] // shape.rows < places.counts[places.group[i]]
                assert places.start[i] + length <= shape.width
                assert places.slot[i] < shape.slots
                for position in range(places.start[i], places.start[i] + length):
                    taken.add((places.group[i], places.row[i], position))
            assert len(taken) == mine.sum()
            at = layout.vector_indices(places)
            assert len(set(at.tolist())) == len(mine)
            assert at.max() < sum(shape.vectors for shape in layout.shapes)
            for shape, count in zip(layout.shapes, places.counts, strict=True):
                assert shape.least <= count <= shape.chunks
            assert layout.positions(places) >= layout.best_positions(mine)
            assert layout.best_positions(mine) >= mine.sum()


def test_slots_follow_the_order_in_a_row():
    layout = plan_packed(as_steps([[5, 4, 3, 3, 2, 2, 1, 1]]), 128)
    places = layout.arrange(np.array([5, 4, 3, 3, 2, 2, 1, 1]))
    for row in set(places.row.tolist()):
        order = np.argsort(places.start[places.row == row])
        slots = places.slot[places.row == row][order]
        np.testing.assert_array_equal(slots, np.arange(len(slots)))


def test_packed_rows_are_full():
    """Lengths as in MS MARCO: more than 0.97 of all positions are tokens."""
    rng = np.random.default_rng(0)
    step = np.concatenate(
        [
            rng.lognormal(np.log(9), 0.3, 4096).clip(3, 32),
            rng.lognormal(np.log(73), 0.4, 4096).clip(8, 256),
        ]
    ).astype(int)
    (steps,) = [as_steps([step])]
    layout = plan_packed(steps, 16_384)
    filled = step.sum() / layout.positions(layout.arrange(steps[0][0]))
    assert filled > 0.97


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.integers(1, 4))
def test_widths_pad_the_least(lengths, most):
    """Against all choices of that many multiples of 8."""
    found = best_widths(np.bincount(lengths), most)
    assert len(found) <= most
    assert all(width % 8 == 0 for width in found)
    candidates = range(8, 8 * (-(-max(lengths) // 8)) + 1, 8)

    def padded(widths):
        return sum(min(w for w in widths if w >= n) for n in lengths)

    best = min(
        padded(widths)
        for size in range(1, most + 1)
        for widths in itertools.combinations(candidates, size)
        if max(widths) >= max(lengths)
    )
    assert padded(found) == best


def test_few_texts_do_not_fill_chunks_of_their_own():
    """One longer text among 15: eight rows more for it would cost a third."""
    step = [16] + [8] * 15
    layout = plan_padded(as_steps([step]), 8 * 108, front=100)
    places = layout.arrange(np.array(step))
    rows = [n * s.rows for n, s in zip(places.counts, layout.shapes, strict=True)]
    computed = sum(rows) * 100 + layout.positions(places)
    assert computed <= 1.1 * (16 * 100 + sum(step))


@pytest.mark.parametrize("packed", [True, False])
def test_longer_text_is_refused(packed):
    plan = plan_packed if packed else plan_padded
    layout = plan(as_steps([[8] * 8]), 64)
    with pytest.raises(ValueError, match="a text of 500 tokens where rows have"):
        layout.arrange(np.array([500, 8]))


@pytest.mark.parametrize("packed", [True, False])
def test_more_texts_than_planned_are_refused(packed):
    plan = plan_packed if packed else plan_padded
    layout = plan(as_steps([[8] * 8]), 64)
    with pytest.raises(ValueError, match="planned for another batch plan"):
        layout.arrange(np.full(500, 8))


@pytest.mark.parametrize(("front", "widths"), [(0, 2), (1000, 1)])
def test_a_width_that_saves_little_is_left_out(front, widths):
    # Eight positions more or less for each text, of 16 or of 1,016.
    steps = as_steps([[16] * 64 + [8] * 128])
    layout = plan_padded(steps, 64 * (front + 16), front=front)
    assert len(layout.shapes) == widths


def test_widths_beyond_the_longest_text_cost_nothing():
    steps = as_steps([[8, 16, 24, 3]])
    assert plan_padded(steps, 64, max_widths=10**6) == plan_padded(steps, 64)
