"""Planned shapes: every step is covered, few shapes, and padding counted exactly."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.training.layout import Layout, chunk_widths, plan_layouts, round_width

lengths = st.lists(st.integers(1, 200), min_size=8, max_size=8)


@given(st.integers(1, 5000))
def test_width_holds_the_length_and_wastes_little(length):
    width = round_width(length)
    assert 0 <= width - length <= max(7, length // 4)


@given(lengths, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 8]))
def test_dealt_chunks_fit_their_widths(lengths, devices, chunk):
    widths = chunk_widths(np.array(lengths), chunk, devices)
    ordered = sorted(lengths, reverse=True)
    for device in range(devices):
        mine = ordered[device::devices]
        for index, width in enumerate(widths):
            texts = mine[index * chunk : (index + 1) * chunk]
            assert all(length <= width for length in texts)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(lengths, min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_every_step_is_covered_by_few_layouts(steps, max_layouts, max_widths):
    needed = [Layout((chunk_widths(np.array(s), 2, 1), (8,))) for s in steps]
    plan = plan_layouts(
        needed,
        sum(map(sum, steps)),
        chunks=(2, 1),
        devices=1,
        max_layouts=max_layouts,
        max_widths=max_widths,
    )
    assert len(plan.layouts) <= max_layouts
    padded = 0
    for need in needed:
        found = plan.find(need)
        for have, want in zip(found.widths, need.widths, strict=True):
            assert all(h >= w for h, w in zip(have, want, strict=True))
            assert len(set(have)) <= max_widths
        padded += 2 * sum(found.widths[0]) + 8
    assert plan.padded_tokens == padded
    assert 0 < plan.padding_efficiency <= 1


def test_groups_are_the_cheapest():
    """Against all ways to cut the steps, ordered by cost, into consecutive groups."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        needed = [
            Layout((tuple(sorted(rng.integers(1, 9, 3) * 8, reverse=True)),))
            for _ in range(6)
        ]
        plan = plan_layouts(
            needed, 1, chunks=(1,), devices=1, max_layouts=3, max_widths=3
        )
        ordered = sorted(needed, key=lambda n: sum(n.widths[0]))
        best = min(
            _grouped_cost(ordered, cuts)
            for size in range(3)
            for cuts in itertools.combinations(range(1, 6), size)
        )
        assert plan.padded_tokens <= best


def _grouped_cost(ordered, cuts):
    groups = np.split(np.array([n.widths[0] for n in ordered]), cuts)
    return sum(len(group) * group.max(0).sum() for group in groups)


def test_foreign_step_is_refused():
    plan = plan_layouts(
        [Layout(((8, 8),))], 1, chunks=(1,), devices=1, max_layouts=1, max_widths=1
    )
    with pytest.raises(ValueError, match="planned for another batch plan"):
        plan.find(Layout(((16, 8),)))
