"""The pairs artefact: what is stored once, dropped, counted, split and sampled."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdejax.config import ColumnsConfig, Config, DataConfig, SourceConfig
from cdejax.data.pairs import Pairs, PairTable, build_pairs, pairs_stage
from cdejax.storage.artifacts import read_manifest

COLUMNS = ColumnsConfig(negatives="n", domain="domain")


def row(q: str, d: str, domain: str = "a", n: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"query": q, "document": d, "domain": domain, "n": list(n)}


def source(file: Path, rows: list[dict], columns: ColumnsConfig = COLUMNS):
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return SourceConfig(path=str(file), columns=columns)


def build(folder: Path, rows: list[dict], **options: Any) -> tuple[Pairs, dict]:
    config = DataConfig(sources=(source(folder / "rows.jsonl", rows),), **options)
    counts = build_pairs(config, 0, folder / "out")
    return Pairs.open(folder / "out"), counts


def texts(pairs: Pairs, part: PairTable) -> list[tuple]:
    """The part's rows as texts again."""
    return [
        (
            pairs.queries[part.query[i]],
            pairs.documents[part.document[i]],
            pairs.domains[part.domain[i]],
            tuple(pairs.documents[d] for d in part.negatives[i]),
        )
        for i in range(len(part))
    ]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        row("first \U0001f600", " spaces stay ", "a", ("x", "y")),
        row("second", "línea\nnueva", "b", ("línea\nnueva!",)),
        row("third", "c" * 10_000, "a"),
    ]
    pairs, counts = build(tmp_path, rows)
    expected = [(r["query"], r["document"], r["domain"], tuple(r["n"])) for r in rows]
    assert texts(pairs, pairs.train) == expected
    assert texts(pairs, pairs.heldout) == []
    assert (counts["queries"], counts["documents"], counts["negatives"]) == (3, 6, 3)
    assert counts["domains"] == {
        "a": {"train": 2, "heldout": 0},
        "b": {"train": 1, "heldout": 0},
    }
    assert not (tmp_path / "out" / "scratch").exists()


def test_dtypes(tmp_path: Path) -> None:
    pairs, _ = build(tmp_path, [row("q", "d", "a", ("n",))])
    for table in (pairs.train, pairs.heldout):
        for column in (table.query, table.document, table.domain):
            assert column.dtype == np.int32
        assert table.negatives.values.dtype == np.int32
        assert len(table.negatives) == len(table)
    assert pairs.query_content.dtype == pairs.document_content.dtype == np.int64
    assert pairs.query_domain.dtype == pairs.document_domain.dtype == np.int32


def test_texts_are_unique_within_a_domain_and_share_content_ids(tmp_path: Path) -> None:
    rows = [row("q", "d"), row("q", "e"), row("q", "d", "b"), row("d", "q", "b")]
    pairs, _ = build(tmp_path, rows)
    assert list(pairs.queries) == ["q", "q", "d"]
    assert list(pairs.query_domain) == [0, 1, 1]
    assert list(pairs.documents) == ["d", "e", "d", "q"]
    q, d, e = 0, 1, 2
    assert list(pairs.query_content) == [q, q, d]
    assert list(pairs.document_content) == [d, e, d, q]


def test_equal_pairs_become_one_with_the_negatives_of_all(tmp_path: Path) -> None:
    rows = [
        row("q", "d", "a", ("n1",)),
        row("q", "d", "a", ("n2", "n1")),
        row("q", "d", "b", ("n3",)),
    ]
    pairs, counts = build(tmp_path, rows)
    assert texts(pairs, pairs.train) == [
        ("q", "d", "a", ("n1", "n2")),
        ("q", "d", "b", ("n3",)),
    ]
    assert counts["duplicate_pairs"] == 1


def test_known_positives_are_no_negatives(tmp_path: Path) -> None:
    rows = [
        row("q", "d", "a", ("d", "e", "n")),
        row("q", "e", "b", ("f",)),
        row("other", "f", "a", ("d",)),
    ]
    pairs, counts = build(tmp_path, rows)
    assert [r[3] for r in texts(pairs, pairs.train)] == [("n",), ("f",), ("d",)]
    assert counts["negatives_known_positive"] == 2
    assert counts["negatives"] == 3


def test_a_negative_that_is_the_querys_text_is_left_out(tmp_path: Path) -> None:
    rows = [row("q", "d", "a", ("q", "n", "r")), row("r", "e", "a", ("q", "r", "r"))]
    pairs, counts = build(tmp_path, rows)
    assert [r[3] for r in texts(pairs, pairs.train)] == [("n", "r"), ("q",)]
    assert counts["negatives_equal_query"] == 2
    assert counts["negatives_known_positive"] == 0


def known(pairs: Pairs) -> set[tuple[str, str]]:
    """The stored relation, as texts."""
    queries = dict(zip(pairs.query_content, pairs.queries, strict=True))
    documents = dict(zip(pairs.document_content, pairs.documents, strict=True))
    keys = [divmod(int(key), 2**32) for key in pairs.known.keys]
    assert keys == sorted(set(keys))
    return {(queries[query], documents[document]) for query, document in keys}


@pytest.mark.parametrize("options", [{}, {"max_rows": 15}, {"heldout_rows": 10}])
def test_known_positives_come_from_all_rows(tmp_path: Path, options: dict) -> None:
    """Of any domain and part, sampled out or not; of texts that are there."""
    rng = np.random.default_rng(0)
    rows = [
        row(f"q{q}", f"d{d}", f"domain {m}")
        for q, d, m in zip(*rng.integers(0, [[12], [40], [2]], (3, 50)), strict=True)
    ]
    pairs, _ = build(tmp_path, rows, **options)
    queries, documents = set(pairs.queries), set(pairs.documents)
    read = {(r["query"], r["document"]) for r in rows}
    there = {(q, d) for q, d in read if q in queries and d in documents}
    several = {q for q in queries if sum(pair[0] == q for pair in there) > 1}
    assert known(pairs) == {(q, d) for q, d in there if q in several}
    assert (len(pairs.train) < 50) == bool(options)


def test_pairs_of_an_earlier_version_are_refused_in_training(tmp_path: Path) -> None:
    """What they hold is read; what they never stored is not made up."""
    build(tmp_path, [row("q", "d"), row("q", "e")])
    (tmp_path / "out" / "known.npy").unlink()
    pairs = Pairs.open(tmp_path / "out")
    assert list(pairs.queries) == ["q"]
    with pytest.raises(ValueError, match=r"out: has no known\.npy .*another `name` or"):
        _ = pairs.known


def test_heldout_documents_are_no_negatives_of_training_pairs(tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(0, 10**6, (40, 12)).astype(str)
    documents = [" ".join(row) for row in words]
    rows = [row(f"q{i}", d, "a", tuple(documents)) for i, d in enumerate(documents)]
    pairs, counts = build(tmp_path, rows, heldout_fraction=0.25)
    assert (len(pairs.train), len(pairs.heldout)) == (30, 10)
    held = set(pairs.heldout.document)
    for i in range(30):
        assert not held & set(pairs.train.negatives[i])
        assert len(pairs.train.negatives[i]) == 29
    assert counts["negatives_held_out"] == 30 * 10
    assert set(pairs.heldout.negatives.lengths) == {39}


def test_nothing_near_crosses_the_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, family = [], {}
    for number in range(120):
        words = rng.integers(0, 10**6, 60).astype(str)
        for copy in range(1 + number % 3):
            near = [*words, "copied", "to", f"place{copy}"]
            document = " ".join(near)
            family[document] = number
            query = f"query {number // 2} {copy}"  # two families share each query
            rows.append(row(query, document, "ab"[copy % 2]))
    pairs, counts = build(tmp_path, rows, heldout_fraction=0.3)
    train, heldout = (texts(pairs, part) for part in (pairs.train, pairs.heldout))
    assert 0.25 * len(rows) <= len(heldout) <= 0.3 * len(rows)
    for field in (lambda r: r[0], lambda r: r[1], lambda r: family[r[1]]):
        assert not set(map(field, train)) & set(map(field, heldout))
    assert counts["near_duplicate_documents"] == len(rows) - 120
    assert len(train) == counts["train_rows"]
    assert len(heldout) == counts["heldout_rows"]


def test_heldout_rows_and_max_rows(tmp_path: Path) -> None:
    rows = [row(f"query {i}", f"document number {i * i} here") for i in range(200)]
    pairs, counts = build(
        tmp_path, rows, heldout_fraction=0.5, heldout_rows=20, max_rows=50
    )
    assert (len(pairs.train), len(pairs.heldout)) == (50, 20)
    assert counts["left_out_by_max_rows"] == 130
    assert len(pairs.queries) == len(pairs.documents) == 70
    kept = [int(r[0].split()[1]) for r in texts(pairs, pairs.train)]
    assert kept == sorted(kept)


def test_rows_alone_limit_the_heldout_part(tmp_path: Path) -> None:
    rows = [row(f"query {i}", f"document number {i * i} here") for i in range(50)]
    pairs, _ = build(tmp_path, rows, heldout_rows=7)
    assert len(pairs.heldout) == 7


def test_external_ids(tmp_path: Path) -> None:
    columns = ColumnsConfig(query_id="qid", document_id="did")
    rows = [{"query": f"q{i}", "document": "d", "qid": i, "did": "D"} for i in range(3)]
    with_ids = source(tmp_path / "a.jsonl", rows, columns)
    plain = source(tmp_path / "b.jsonl", [row("p", "e")])
    build_pairs(DataConfig(sources=(with_ids, plain)), 0, tmp_path / "out")
    pairs = Pairs.open(tmp_path / "out")
    assert pairs.query_ids == ["0", "1", "2", None]
    assert pairs.document_ids == ["D", None]


def test_without_ids_there_is_no_file(tmp_path: Path) -> None:
    pairs, _ = build(tmp_path, [row("q", "d")])
    assert pairs.query_ids == [None]
    assert not (tmp_path / "out" / "query_ids.json").exists()


def test_stage_is_found_again_and_follows_its_inputs(tmp_path: Path) -> None:
    rows = [row(f"query {i}", f"document number {i}") for i in range(9)]
    data = DataConfig(sources=(source(tmp_path / "a.jsonl", rows),))
    folder = pairs_stage(Config(data=data), tmp_path / "runs")
    assert pairs_stage(Config(data=data), tmp_path / "runs") == folder
    manifest = read_manifest(folder)
    assert manifest["counts"]["train_rows"] == 9
    assert Pairs.open(folder).fingerprint == manifest["fingerprint"]
    assert pairs_stage(Config(data=data, seed=1), tmp_path / "runs") != folder
    source(tmp_path / "a.jsonl", rows[1:])
    assert pairs_stage(Config(data=data), tmp_path / "runs") != folder


def test_a_failed_stage_does_not_stand_in_the_way(tmp_path: Path) -> None:
    data = DataConfig(sources=(source(tmp_path / "a.jsonl", [row("", "d")]),))
    for _ in range(2):
        with pytest.raises(ValueError, match="`query` is empty"):
            pairs_stage(Config(data=data), tmp_path / "runs")


def test_same_seed_same_artefact(tmp_path: Path) -> None:
    rows = [row(f"query {i}", f"document number {i * i} here") for i in range(90)]
    options: dict[str, Any] = {"heldout_fraction": 0.2, "max_rows": 40}
    data = DataConfig(sources=(source(tmp_path / "a.jsonl", rows),), **options)
    for name in ("one", "two"):
        build_pairs(data, 3, tmp_path / name)
    build_pairs(data, 4, tmp_path / "three")
    parts = [
        [texts(p, p.train), texts(p, p.heldout)]
        for p in (Pairs.open(tmp_path / name) for name in ("one", "two", "three"))
    ]
    assert parts[0] == parts[1]
    assert parts[0][0] != parts[2][0]
    assert parts[0][1] != parts[2][1]
