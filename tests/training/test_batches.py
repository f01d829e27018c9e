"""What a step holds: the plan's rows, whatever the devices, threads and hosts."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from cdejax.data.known_positives import KnownPositives
from cdejax.data.loader import batches
from cdejax.data.ragged import Ragged, RaggedWriter
from cdejax.training.batch import fill_fraction
from cdejax.training.relation_ids import known_ids
from cdejax.training.rows import PackedRows
from tests.training.toy import make_batches, world


def texts_at(groups, at, device, devices):
    """The tokens whose vector comes out at each of some places of a device."""
    found, first = {}, 0
    for group in groups:
        chunks, rows, width = group.rows.ids.shape
        chunks //= devices
        part = slice(device * chunks, (device + 1) * chunks)
        ids = group.rows.ids[part].reshape(-1, width)
        packed = isinstance(group.rows, PackedRows)
        slots = group.rows.numbers.shape[-1] if packed else 1
        for row, slot in itertools.product(range(chunks * rows), range(slots)):
            if packed:
                segments = group.rows.segments[part].reshape(-1, width)
                text = ids[row][segments[row] == slot + 1]
            else:
                text = ids[row][: group.rows.lengths[part].ravel()[row]]
            found[first + row * slots + slot] = tuple(text.tolist())
        first += chunks * rows * slots
    return [found[int(place)] for place in at]


def texts_of(batch, devices):
    """Token tuples of queries and documents in the order of their relation ids."""
    queries, documents = [], []
    for device in range(devices):
        for at, out in ((batch.query_at, queries), (batch.document_at, documents)):
            mine = at.reshape(devices, -1)[device]
            out += texts_at(batch.texts, mine, device, devices)
    return queries, documents


def numbers_of(rows: Any):
    """(Side, row) of every text of a group."""
    texts = rows.ids.reshape(-1, rows.ids.shape[-1])
    columns = (rows.sides.ravel(), rows.numbers.ravel(), texts.any(1))
    return {
        (int(side), int(row)) for side, row, real in zip(*columns, strict=True) if real
    }


HOW = [(1, 40, True), (2, 3000, True), (8, 1, True), (2, 100, False), (8, 300, False)]


@pytest.mark.parametrize(("devices", "tokens", "packed"), HOW)
@pytest.mark.parametrize("context", [0, 8])
def test_holds_the_texts_of_the_plan(devices, tokens, packed, context):
    maker = make_batches(
        world(negatives=2),
        devices=devices,
        tokens=tokens,
        packed=packed,
        context=context,
        negatives=2,
    )
    one = make_batches(world(negatives=2), context=context, negatives=2)
    store, table = maker.tokens, maker.pairs.train
    for step in (0, 5):
        batch, rows = maker.step(step), maker.plan.rows(step)
        queries, documents = texts_of(batch, devices)
        for row, text in zip(batch.query_rows.row, queries, strict=True):
            assert text == tuple(store.queries[int(table.query[rows[row]])])
        columns = batch.document_columns
        for row, positive, text in zip(
            columns.row, columns.positive, documents, strict=True
        ):
            if positive:
                number = int(table.document[rows[row]])
                assert text == tuple(store.documents[number])
        whole = one.step(step)
        for name in ("query_rows", "document_columns"):
            for a, b in zip(getattr(whole, name), getattr(batch, name), strict=True):
                assert sorted(map(str, a)) == sorted(map(str, b))
        if not packed:  # side and row, for random keys
            numbers = [numbers_of(group.rows) for group in batch.texts]
            expected = {(0, i) for i in range(16)} | {(1, i) for i in range(48)}
            assert set().union(*numbers) == expected


@pytest.mark.parametrize("packed", [True, False])
def test_context_order_undoes_the_deal(packed):
    for devices in (1, 2, 4):
        maker = make_batches(
            world(), devices=devices, tokens=30, context=6, packed=packed
        )
        batch = maker.step(3)
        places = batch.context_at.reshape(devices, -1)
        by_place = [
            text
            for device in range(devices)
            for text in texts_at(batch.context, places[device], device, devices)
        ]
        rows = maker.sampler.rows(3).context
        for number, place in enumerate(batch.context_order):
            expected = tuple(maker.tokens.context[int(rows[number])])
            assert by_place[int(place)] == expected


@pytest.mark.parametrize("packed", [True, False])
def test_contexts_that_devices_cannot_share_equally_fit_their_shapes(packed):
    """Each device still holds the texts that its shapes were planned for."""
    for devices, context in ((2, 7), (4, 3), (8, 11)):
        maker = make_batches(
            world(rows=128, epochs=4),
            devices=devices,
            tokens=30,
            context=context,
            packed=packed,
        )
        for step in range(maker.plan.total_steps):
            batch = maker.step(step)
            assert sorted(batch.context_order) == sorted(set(batch.context_order))
            assert batch.context_at.size == -(-context // devices) * devices


@pytest.mark.parametrize("packed", [True, False])
def test_one_shape_for_all_steps(packed):
    maker = make_batches(world(rows=128, epochs=4), tokens=30, context=4, packed=packed)
    shapes = {
        str(jax.tree.map(np.shape, maker.step(step)))
        for step in range(maker.plan.total_steps)
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_padding_is_counted_as_computed(packed):
    maker = make_batches(world(), devices=2, tokens=50, context=8, packed=packed)
    for step in range(maker.plan.total_steps):
        batch = maker.step(step)
        computed = sum(
            int(np.asarray(group.count).sum()) * group.rows.ids[0].size
            for group in (*batch.texts, *batch.context)
        )
        assert computed == maker.padded_tokens(step)
        share = maker.real_tokens(step) / computed
        assert fill_fraction(batch) == pytest.approx(share)
    found, possible = maker.padding_efficiency(steps=maker.plan.total_steps)
    assert 0 < found <= possible <= 1


def test_a_process_reads_its_own_texts_only():
    """The tokens of the other devices' texts are never touched."""
    maker = make_batches(world(), devices=4, context=8)
    read = []
    for store in (maker.tokens.queries, maker.tokens.documents):
        real = store.joined
        store.joined = lambda rows, real=real: read.append(len(rows)) or real(rows)
    maker.step(2, local=[1])
    assert sum(read) == 16 // 4 + 16 // 4 + 8 // 4


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


def test_rows_without_negatives_may_come_from_a_file(tmp_path):
    pairs, *rest = world(negatives=1)
    rows = [np.zeros(0, np.int32)] * len(pairs.train.query)
    with RaggedWriter(tmp_path, np.int32) as writer:
        writer.append([*rows[1:], np.array([3], np.int32)])
    pairs.train.negatives = Ragged.open(tmp_path)
    columns = make_batches((pairs, *rest), negatives=1).step(0).document_columns
    assert (columns.real & ~columns.positive).sum() <= 1


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


def test_a_context_larger_than_a_batch_is_refused():
    message = (
        r"model\.context_size is 17.*plan\.batch_size makes 16; lower .* to 16 or raise"
    )
    with pytest.raises(ValueError, match=message):
        make_batches(world(batch=16), context=17)


@pytest.mark.parametrize("negatives", [0, 2])
def test_known_positives_of_every_step_have_room_and_no_more(negatives):
    maker = make_batches(world(negatives=negatives), negatives=negatives)
    found = [
        known_ids(maker.pairs, maker.sampler.rows(step)).shape[1]
        for step in range(maker.plan.total_steps)
    ]
    assert maker.step(0).query_rows.known.shape[1] == max(found) > 0


def test_queries_with_several_documents_are_known():
    known = KnownPositives.of(np.array([3, 3, 5, 5, 7]), np.array([1, 2, 4, 4, 9]))
    found = known.has_several(np.array([7, 3, 5, 0, 3]))
    assert found.tolist() == [False, True, False, False, True]
