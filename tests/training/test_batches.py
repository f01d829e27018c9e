"""What a step holds: the plan's rows, whatever the devices, threads and hosts."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from cdejax.data.loader import batches
from cdejax.training.known import KnownPositives
from tests.training.toy import make_batches, world


def texts_of(groups, count_per_device, devices):
    """Token tuples by row number, fillers left out."""
    found = {}
    for device in range(devices):
        taken = 0
        for group in groups:
            chunks = group.ids.shape[0] // devices
            part = slice(device * chunks, (device + 1) * chunks)
            ids = group.ids[part].reshape(-1, group.ids.shape[-1])
            lengths, rows = group.lengths[part].ravel(), group.rows[part].ravel()
            for text, length, row in zip(ids, lengths, rows, strict=True):
                if taken < count_per_device:
                    assert not text[length:].any()
                    assert int(row) not in found
                    found[int(row)] = tuple(text[:length])
                    taken += 1
    return found


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_holds_the_same_texts_on_any_devices(devices, chunk):
    one = make_batches(world(negatives=2), devices=1, chunk=5, context=8, negatives=2)
    many = make_batches(
        world(negatives=2), devices=devices, chunk=chunk, context=8, negatives=2
    )
    for step in (0, 5):
        whole, split = one.step(step), many.step(step)
        assert texts_of(whole.query, 16, 1) == texts_of(
            split.query, 16 // devices, devices
        )
        assert texts_of(whole.document, 48, 1) == texts_of(
            split.document, 48 // devices, devices
        )
        rows = one.plan.rows(step)
        tokens, table = one.tokens, one.pairs.train
        for row, text in texts_of(whole.query, 16, 1).items():
            assert text == tuple(tokens.queries[int(table.query[rows[row]])])
        order = np.argsort(whole.document_columns.row, kind="stable")
        other = np.argsort(split.document_columns.row, kind="stable")
        for a, b in zip(whole.document_columns, split.document_columns, strict=True):
            assert sorted(map(str, a[order])) == sorted(map(str, b[other]))


def test_context_order_undoes_the_deal():
    for devices in (1, 2, 4):
        maker = make_batches(world(), devices=devices, chunk=2, context=6)
        batch = maker.step(3)
        width = -(-6 // devices)
        by_place = {}
        for device in range(devices):
            position = 0
            for group in batch.context:
                chunks = group.ids.shape[0] // devices
                part = slice(device * chunks, (device + 1) * chunks)
                for text, length in zip(
                    group.ids[part].reshape(-1, group.ids.shape[-1]),
                    group.lengths[part].ravel(),
                    strict=True,
                ):
                    if position < width:
                        by_place[device * width + position] = tuple(text[:length])
                        position += 1
        rows = maker._rows(3).context
        for number, place in enumerate(batch.context_order):
            assert by_place[int(place)] == tuple(maker.tokens.context[rows[number]])


def test_shapes_are_bounded_and_constant():
    maker = make_batches(world(rows=128, epochs=4), chunk=3, layouts=2)
    shapes = {
        str(jax.tree.map(np.shape, maker.step(step)))
        for step in range(maker.plan.total_steps)
    }
    assert len(shapes) <= 2
    assert len(maker.layouts.layouts) <= 2


def test_padding_is_counted_as_computed():
    maker = make_batches(world(), devices=2, chunk=3, context=8)
    for step in range(maker.plan.total_steps):
        batch = maker.step(step)
        sides = batch.query + batch.document + batch.context
        assert sum(group.ids.size for group in sides) == maker.padded_tokens(step)


def test_missing_negatives_are_not_real():
    maker = make_batches(world(negatives=2), negatives=2)
    columns = maker.step(0).document_columns
    table, rows = maker.pairs.train, maker.plan.rows(0)
    for row, pair in enumerate(rows):
        real = columns.real & ~columns.positive & (columns.row == row)
        negatives = table.negatives[int(pair)]
        assert real.sum() == min(2, len(negatives))
        contents = maker.pairs.document_content[negatives]
        assert set(columns.document[real]) <= set(contents)


def test_batch_size_that_devices_cannot_share_is_refused():
    with pytest.raises(ValueError, match=r"plan\.batch_size is 16, which 3 devices"):
        make_batches(world(), devices=3)


@pytest.mark.parametrize("threads", [1, 4])
def test_loader_gives_pure_functions_of_the_step(threads):
    maker = make_batches(world())
    for start in (0, 3):
        found = list(batches(maker.step, start, 8, threads=threads))
        assert [step for step, _ in found] == list(range(start, 8))
        for step, batch in found:
            for a, b in zip(
                jax.tree.leaves(batch), jax.tree.leaves(maker.step(step)), strict=True
            ):
                np.testing.assert_array_equal(a, b)
    assert list(batches(maker.step, 8, 8, threads=threads)) == []


def test_known_positives_beyond_the_batch():
    """Query 0 is answered by 10, 11 and 12; query 1 by 20 alone."""
    pairs: Any = SimpleNamespace(
        train=SimpleNamespace(
            query=np.array([0, 0, 0, 1]), document=np.array([0, 1, 2, 3])
        ),
        heldout=SimpleNamespace(query=np.zeros(0, int), document=np.zeros(0, int)),
        query_content=np.array([0, 1, 5]),
        document_content=np.array([10, 11, 12, 20]),
    )
    known = KnownPositives.from_pairs(pairs)
    query, positive = np.array([0, 1, 5, 0]), np.array([10, 20, 11, 12])
    found = known.beyond_batch(query, positive, np.array([12, 10]))
    assert [set(row) - {-1} for row in found] == [
        {10, 11, 12},
        set(),
        set(),
        {10, 11, 12},
    ]
    found = known.beyond_batch(query, positive, np.zeros(0, int))
    assert [set(row) - {-1} for row in found] == [{11}, set(), set(), {11}]
