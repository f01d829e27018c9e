"""Which documents are positives, ignored or negatives, by the list of pairs."""

import collections
import functools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.pairs import Pairs, build_pairs
from cdejax.data.ragged import Ragged
from cdejax.training.batch import BatchSettings
from cdejax.training.batch_maker import BatchMaker
from cdejax.training.objectives import InfoNCE, batch_terms, ring_terms
from cdejax.training.relation import Relation
from cdejax.training.shapes import find_shapes
from cdejax.training.sharding import ROWS, make_mesh
from cdejax.training.step import AXES
from tests.training.oracle import (
    ABSENT,
    IGNORED,
    NEGATIVE,
    POSITIVE,
    Column,
    mean_loss,
    relation,
)
from tests.training.test_batches import texts_of
from tests.training.toy import make_batches, plain_relation, world

NEGATIVES = 2
Rows = list[tuple[str, str, list[str]]]


def build(rows: Rows, folder: Path, **options: Any) -> Pairs:
    """The pairs artefact of (query, document, negatives), read from a file."""
    file = folder / "pairs.jsonl"
    names = ("query", "document", "negatives")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    file.write_text("\n".join(lines))
    source = SourceConfig(str(file), ColumnsConfig(negatives="negatives"))
    build_pairs(DataConfig(sources=(source,), **options), 0, folder / "out")
    return Pairs.open(folder / "out")


def one_batch(pairs: Pairs, rows: Any, devices: int = 1) -> BatchMaker:
    """A plan of one step; the only token of a text is its row number, plus one."""
    number = lambda texts: Ragged.from_rows(  # noqa: E731
        [np.array([i + 1], np.int32) for i in range(len(texts))]
    )
    documents = number(pairs.documents)
    tokens: Any = SimpleNamespace(
        queries=number(pairs.queries), documents=documents, context=documents
    )
    plan: Any = SimpleNamespace(
        batch_size=len(rows), total_steps=1, rows=lambda step: rows
    )
    how = BatchSettings(
        seed=0,
        devices=devices,
        chunk_tokens=8,
        context_size=0,
        soft_tokens=0,
        negatives_per_query=NEGATIVES,
        max_widths=1,
        packed=True,
    )
    shapes = find_shapes(pairs, tokens, plan, how)
    return BatchMaker(pairs, tokens, plan, how, shapes)


def texts_in(maker: BatchMaker, batch: Any) -> tuple[list[str], list[Column]]:
    """Queries and documents of a batch, as its tokens tell them."""
    queries, documents = texts_of(batch, maker.settings.devices)
    columns = zip(documents, *batch.document_columns[:-1], strict=True)
    pairs = maker.pairs
    return [pairs.queries[token - 1] for (token,) in queries], [
        Column(pairs.documents[token - 1], int(row), bool(positive), bool(real))
        for (token,), row, _, _, positive, real in columns
    ]


def ours(batch: Any, duplicates: Any) -> np.ndarray:
    """The relation of a batch in the oracle's words."""
    cells = Relation(duplicates).cells(batch.query_rows, batch.document_columns)
    out = np.full(np.shape(cells.own), NEGATIVE, object)
    out[np.asarray(cells.outside)] = ABSENT
    out[np.asarray(cells.ignored)] = IGNORED
    out[np.asarray(cells.positive)] = POSITIVE
    return out


def by_texts(maker: BatchMaker, duplicates: str) -> dict[tuple[str, str], list[str]]:
    """What a document's text is to a query's, wherever the two meet in the batch."""
    batch = maker.step(0)
    queries, columns = texts_in(maker, batch)
    found = collections.defaultdict(list)
    for (i, j), cell in np.ndenumerate(ours(batch, duplicates)):
        if cell != ABSENT:
            found[queries[i], columns[j].text].append(cell)
    return found


def check(maker: BatchMaker, rows: Rows) -> None:
    """The batch's relation against the oracle's, for all pairs that were read."""
    batch = maker.step(0)
    queries, columns = texts_in(maker, batch)
    order = np.argsort(batch.query_rows.row)
    read = {(query, document) for query, document, _ in rows}
    for duplicates in ("ignore", "positive"):
        expected = relation(
            [queries[i] for i in order], columns, read, duplicates=duplicates
        )
        found = ours(batch, duplicates)[order]
        np.testing.assert_array_equal(found, expected)


TEXTS = st.sampled_from("abcde")
LISTS = st.lists(
    st.tuples(TEXTS, TEXTS, st.lists(TEXTS, max_size=3)), min_size=4, max_size=24
)


@settings(max_examples=60, deadline=None)
@given(
    rows=LISTS,
    seed=st.integers(0, 99),
    devices=st.sampled_from([1, 2]),
    max_rows=st.none() | st.integers(2, 8),
    heldout=st.sampled_from([0.0, 0.3]),
)
def test_relation_of_a_batch_is_that_of_the_pair_list(
    rows, seed, devices, max_rows, heldout
):
    """Repeats, duplicates, hard negatives, rows sampled or held out, equal texts."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"max_rows": max_rows, "heldout_fraction": heldout}
        pairs = build(rows, Path(folder), **options)
        count = len(pairs.train) // devices * devices
        if count:
            batch = np.random.default_rng(seed).permutation(len(pairs.train))[:count]
            check(one_batch(pairs, batch, devices), rows)


def test_an_answer_that_stands_under_another_query_is_no_negative(tmp_path):
    rows: Rows = [("one", "x", []), ("one", "y", []), ("two", "y", [])]
    maker = one_batch(build(rows, tmp_path), np.arange(3))
    check(maker, rows)
    batch = maker.step(0)
    assert batch.query_rows.row.tolist() == [0, 1, 2]
    assert batch.document_columns.row[:3].tolist() == [0, 1, 2]
    # Row 0 and row 1 ask the same; row 2 shows `y` once more.
    assert ours(batch, "ignore")[:, :3].tolist() == [
        [POSITIVE, IGNORED, IGNORED],
        [IGNORED, POSITIVE, IGNORED],
        [NEGATIVE, IGNORED, POSITIVE],
    ]


def test_an_answer_that_max_rows_left_out_is_no_negative(tmp_path):
    rows: Rows = [("one", "x", []), ("one", "y", []), ("two", "y", [])]
    seen = set()
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(3)]
        pairs = build(shuffled, folder, max_rows=2)
        maker = one_batch(pairs, np.arange(2))
        check(maker, rows)
        found = by_texts(maker, "ignore")
        if found["one", "x"] and found["two", "y"]:
            assert found["one", "x"] == [POSITIVE]
            assert found["one", "y"] == [IGNORED]
            seen.add(seed)
    assert seen


@pytest.mark.parametrize("as_negative", [False, True])
def test_a_document_that_is_the_querys_text_is_ignored(tmp_path, as_negative):
    """Questions paired with their duplicates: each text stands on both sides."""
    rows: Rows = [("a", "b", []), ("c", "a", []), ("d", "d", []), ("d", "e", [])]
    if as_negative:
        rows += [("f", "g", ["a", "f"])]
    pairs = build(rows, tmp_path)
    maker = one_batch(pairs, np.arange(len(rows)))
    check(maker, rows)
    for duplicates, repeated in (("ignore", IGNORED), ("positive", POSITIVE)):
        found = by_texts(maker, duplicates)
        assert found["a", "a"] == [IGNORED] * (1 + as_negative)
        assert found["c", "b"] == [NEGATIVE]
        # A known answer, though the texts are equal: of one row it is the own one.
        assert sorted(found["d", "d"]) == sorted([POSITIVE, repeated])
        assert ("f", "f") not in found  # dropped among its hard negatives


def test_the_toy_world_holds_every_kind_of_cell():
    """What the whole step is tested on: answers that the batch itself does not tell."""
    maker = make_batches(world(negatives=2), negatives=2)
    how = Relation()
    rows, pairs = maker.sampler.rows(1), maker.pairs
    cells = plain_relation(maker, 1, how)
    queries = [pairs.queries[i] for i in rows.query]
    columns = [pairs.documents[i] for i in rows.document]
    shown = {(queries[i], columns[i]) for i in range(len(queries))}
    kinds = collections.Counter()
    for (i, j), cell in np.ndenumerate(cells):
        negative = "hard negative" if j >= len(queries) else "positive"
        if cell == IGNORED and columns[j] == queries[i]:
            kinds["equal text", negative] += 1
        elif cell == IGNORED and (queries[i], columns[j]) not in shown:
            kinds["known beyond the batch", negative] += 1
        elif cell == IGNORED and queries[rows.owner[j]] != queries[i]:
            kinds["shown under another query", negative] += 1
    assert len(kinds) == 6, kinds


@pytest.mark.parametrize("duplicates", ["ignore", "positive"])
@pytest.mark.parametrize(
    ("devices", "ring", "block"),
    [(1, False, 1), (1, False, 7), (1, False, 4096), (8, False, 5), (8, True, 3)],
)
def test_loss_is_that_of_the_pair_list(duplicates, devices, ring, block):
    """In blocks, on one device and on eight, gathered and passed on."""
    maker = make_batches(world(negatives=2), devices=devices, negatives=2)
    batch, how = maker.step(1), Relation(duplicates)
    rng = np.random.default_rng(0)
    q, d = (rng.normal(size=(n, 8)).astype(np.float32) for n in (16, 48))
    terms = functools.partial(
        ring_terms if ring else batch_terms, InfoNCE(0.1), how, axes=AXES, block=block
    )

    def local(q, d, rows, columns):
        return terms(q, d, rows, columns).loss

    mesh = make_mesh(jax.devices()[:devices])
    run = jax.shard_map(local, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
    found = jax.jit(run)(q, d, batch.query_rows, batch.document_columns)
    # Devices hold rows and columns in an order of their own.
    deals = maker.sharding.shard(maker.sampler.rows(1))[:2]
    row, column = (np.concatenate(deal) for deal in deals)
    cells = plain_relation(maker, 1, how)[row][:, column]
    expected = mean_loss(q, d, cells, 0.1)
    np.testing.assert_allclose(np.mean(found), expected, rtol=1e-5)
