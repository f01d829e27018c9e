"""BEIR folders as collections."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from cdejax.config import EvaluationConfig, SourceConfig
from cdejax.data.beir import read_collection
from cdejax.data.sources import check_source
from cdejax.retrieval.collections import collection_folders

from .conftest import QRELS, QUERIES, jsonl


def test_collection(beir: Path) -> None:
    collection = read_collection(beir)
    assert collection.document_ids == ["d1", "d2", "d3", "d4"]
    assert collection.documents == ["Title text one", "text two", "", "no title"]
    assert collection.query_ids == ["q1", "q2"]
    assert collection.queries == ["question 1", "question 2"]
    assert collection.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d4": 1, "d1": 1}}
    assert collection.counts == {
        "documents": 4,
        "empty_documents": 1,
        "queries": 2,
        "unjudged_queries": 2,
        "judgments": 4,
        "unknown_ids": 0,
    }
    assert collection.titles == {"d1": "Title"}
    assert read_collection(f"{beir}:test") == collection
    assert read_collection(beir, "test") == collection


def test_qrels_without_a_header(beir: Path) -> None:
    (beir / "qrels" / "test.tsv").write_text("\n".join(QRELS))
    assert read_collection(beir).counts["judgments"] == 4


HEADER = "query-id\tcorpus-id\tscore"
ROWS = "q1\td1\t2\nq1\td2\t0\nq2\td4\t1"
FORMS = {
    "trec": "q1 0 d1 2\nq1\tQ0\td2\t0\nq2  0  d4 1 ",
    "blanks": ROWS.replace("\t", " "),
    "first grade a float": "q1\td1\t2.0\nq1\td2\t0.0\nq2\td4\t1.",
    "byte order mark": f"\ufeff{ROWS}",
    "mark and header": f"\ufeff{HEADER}\n{ROWS}",
    "windows": f"{HEADER}\n{ROWS}\n".replace("\n", "\r\n"),
    "other names": f"qid\tdocid\trel\n{ROWS}",
    "other order": "score\tcorpus_id\tquery_id\n2\td1\tq1\n0\td2\tq1\n1\td4\tq2",
    "more columns": "\n".join(f"{line}\tby" for line in [HEADER, *ROWS.split("\n")]),
    "quotes": f"{HEADER}\n{ROWS}".replace("query-id", '"query-id"').replace(
        "d1", '"d1"'
    ),
    "said twice": f"q1\td1\t2\n{ROWS}",
}


@pytest.mark.parametrize("form", FORMS)
def test_judgments_in_every_usual_form(form: str, beir: Path) -> None:
    (beir / "qrels" / "test.tsv").write_bytes(FORMS[form].encode())
    found = read_collection(beir)
    assert found.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d4": 1}}
    assert found.counts["judgments"] == 3
    assert found.counts["unknown_ids"] == 0


def test_qrels_as_trec_names_them(beir: Path) -> None:
    (beir / "qrels" / "dev.qrels").write_text("q1 0 d1 1\nq2 0 d4 1\n")
    assert read_collection(beir, "dev").qrels == {"q1": {"d1": 1}, "q2": {"d4": 1}}


def test_ids_may_hold_rare_line_breaks(beir: Path) -> None:
    with open(beir / "corpus.jsonl", "a") as stream:
        stream.write('{"_id": "d\\u001c5\\u0085", "text": "five"}\n')
    (beir / "qrels" / "test.tsv").write_text("q1\td\x1c5\x85\t1\n")
    assert read_collection(beir).qrels == {"q1": {"d\x1c5\x85": 1}}


UNKNOWN = ["q1\td9\t1", "q9\td1\t1", "q4\td9\t1"]


def test_judgments_of_unknown_ids_are_left_out_and_counted(
    beir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for line in UNKNOWN:
        append("qrels/test.tsv", line)(beir)
    found = read_collection(beir)
    assert found.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d4": 1, "d1": 1}}
    assert found.counts["unknown_ids"] == 3
    assert found.counts["unjudged_queries"] == 2  # q4's only answer is not there
    assert "3 of 8 judgments name unknown ids and are left out" in caplog.text
    assert "test.tsv:7: document id 'd9' is not in the corpus file" in caplog.text


def test_judgments_of_unknown_ids_are_refused_if_asked(beir: Path) -> None:
    for line in UNKNOWN:
        append("qrels/test.tsv", line)(beir)
    with pytest.raises(ValueError, match=r"test\.tsv:7: document id 'd9'") as error:
        read_collection(beir, unknown_ids="error")
    assert "test.tsv:8: query id 'q9' is not in the queries file" in str(error.value)


def append(name: str, line: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        with open(folder / name, "a") as stream:
            stream.write(line + "\n")

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no queries": (
        lambda folder: (folder / "queries.jsonl.gz").unlink(),
        r"set: no queries\.jsonl or queries\.jsonl\.gz.*holds corpus\.jsonl, qrels",
    ),
    "no split": (
        lambda folder: (folder / "qrels" / "test.tsv").rename(folder / "qrels/dev.tsv"),
        r"test\.tsv: no such file; splits there: dev",
    ),
    "conflicting judgments": (
        append("qrels/test.tsv", "q1\td1\t0"),
        r"test\.tsv:7: query id 'q1', document id 'd1': grade 0, but 2 at "
        r"\S+test\.tsv:2; keep one of the two lines",
    ),
    "fraction for a grade": (
        append("qrels/test.tsv", "q1\td4\t0.5"),
        r"test\.tsv:7: needs query id, document id and integer grade",
    ),
    "grade of 400 digits": (
        append("qrels/test.tsv", f"q1\td4\t{'9' * 400}"),
        r"test\.tsv:7: grade '?9+.* is beyond 2,147,483,647",
    ),
    "grade of 33 bits": (
        append("qrels/test.tsv", "q1\td4\t-2147483648"),
        r"test\.tsv:7: grade '?-2147483648'? is beyond 2,147,483,647",
    ),
    "first line is no header": (
        lambda folder: (folder / "qrels" / "test.tsv").write_text("q1\td1\thigh\n"),
        r"test\.tsv:1: needs query id, document id and integer grade",
    ),
    "two files of one split": (
        lambda folder: (folder / "qrels" / "test.txt").write_text("q1 0 d1 1\n"),
        r"test\.tsv, test\.txt are all of split 'test'; keep one",
    ),
    "other encoding": (
        lambda folder: (folder / "qrels" / "test.tsv").write_bytes(b"q1\td\xe9\t1\n"),
        r"test\.tsv:1: not UTF-8",
    ),
    "all ids unknown": (
        lambda folder: (folder / "qrels" / "test.tsv").write_text("d1\tq1\t1\n"),
        r"no query has a document of positive grade \(1 judgments name unknown ids\)",
    ),
    "bad judgment": (
        append("qrels/test.tsv", "q1\td1\thigh"),
        r"test\.tsv:7: needs query id, document id and integer grade",
    ),
    "repeated id": (
        append("corpus.jsonl", '{"_id": "d1", "text": "again"}'),
        r"corpus\.jsonl:5: id 'd1' appears twice",
    ),
    "no text": (
        append("corpus.jsonl", '{"_id": "d5"}'),
        r"corpus\.jsonl:5: needs the fields `_id` and `text`",
    ),
    "null text": (
        append("corpus.jsonl", '{"_id": "d5", "text": null}'),
        r"corpus\.jsonl:5: field `text` is null",
    ),
    "list for title": (
        append("corpus.jsonl", '{"_id": "d5", "title": ["a"], "text": "b"}'),
        r"corpus\.jsonl:5: field `title` is a list",
    ),
    "no positive": (
        lambda folder: (folder / "qrels" / "test.tsv").write_text("q1\td1\t0\n"),
        r"no query has a document of positive grade",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_collection(kind: str, beir: Path) -> None:
    change, message = BROKEN[kind]
    change(beir)
    with pytest.raises(ValueError, match=message) as error:
        read_collection(beir)
    assert "on_invalid" not in str(error.value)  # no setting of collections


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "corpus.jsonl").unlink(), r"no corpus\.jsonl or corpus"),
        (lambda f: (f / "qrels" / "test.tsv").unlink(), r"test\.tsv: no such file"),
        (
            lambda f: (f / "corpus.jsonl").write_text('{"docid": "a", "text": "b"}\n'),
            r"corpus\.jsonl:1: needs the fields `_id` and `text`",
        ),
    ],
)
def test_a_broken_folder_is_found_before_any_work(beir: Path, change, message) -> None:
    config = EvaluationConfig(collections=(str(beir),))
    source = SourceConfig(path=f"{beir}:test")
    assert collection_folders(config) == [beir]
    check_source(source)
    change(beir)
    with pytest.raises(ValueError, match=message):
        collection_folders(config)
    with pytest.raises(ValueError, match=message):
        check_source(source)


def test_empty_query_is_an_error(beir: Path) -> None:
    rows = jsonl([*QUERIES, {"_id": "q5", "text": " "}]).encode()
    (beir / "queries.jsonl.gz").write_bytes(gzip.compress(rows))
    where = r"queries\.jsonl\.gz:5: field `text` is"
    with pytest.raises(ValueError, match=rf"(?s){where}.*write the collection again"):
        read_collection(beir)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such folder\. Give a BEIR folder"):
        read_collection(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "documents", "empty", "queries"),
    [("cranfield", 1400, 2, 225), ("cosqa", 6267, 0, 500), ("cisi", 1460, 0, 76)],
)
def test_real_collections(
    name: str, documents: int, empty: int, queries: int, shared_data: Path
) -> None:
    counts = read_collection(shared_data / "collections" / name).counts
    assert counts["documents"] == documents
    assert counts["empty_documents"] == empty
    assert counts["queries"] == queries
