"""Files as people have them: marks, compression, delimiters, empty shards, columns."""

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.files import read_rows
from cdejax.data.pairs import Pairs, build_pairs
from cdejax.data.rows import Problem, Row
from cdejax.data.sources import check_source
from cdejax.data.texts import read_texts
from tests import malformed

ROWS = [{"query": f"query {i}", "document": f"answer {i}"} for i in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = "query,document\n" + "".join(f"{r['query']},{r['document']}\n" for r in ROWS)
PLAIN = ColumnsConfig()


def read(path: Path, columns: ColumnsConfig = PLAIN) -> list:
    return [row.value for row in read_rows(path, columns) if isinstance(row, Row)]


def problems(path: Path, columns: ColumnsConfig = PLAIN) -> list[Problem]:
    return [row for row in read_rows(path, columns) if isinstance(row, Problem)]


def build(folder: Path, path: Path | str, columns: ColumnsConfig = PLAIN, **options):
    source = SourceConfig(path=str(path), columns=columns)
    config = DataConfig(sources=(source,), **options)
    counts = build_pairs(config, 0, folder / "out")
    return counts, Pairs.open(folder / "out")


WRITTEN = {
    "mark.jsonl": b"\xef\xbb\xbf" + LINES,
    "windows.jsonl": LINES.replace(b"\n", b"\r\n"),
    "lines.ndjson": LINES,
    "lines.json": LINES,
    "hidden.jsonl": gzip.compress(LINES),
    "members.jsonl.gz": gzip.compress(LINES[:50]) + gzip.compress(LINES[50:]),
    "padded.jsonl.gz": gzip.compress(LINES) + bytes(512),
    "plain.jsonl.gz": LINES,
    "a.csv": CSV.encode(),
    "mark.csv": b"\xef\xbb\xbf" + CSV.encode(),
    "windows.csv": CSV.replace("\n", "\r\n").encode(),
    "blank.csv": CSV.replace("\n", "\n\n").encode(),
    "semicolon.csv": CSV.replace(",", ";").encode(),
    "tab.csv": CSV.replace(",", "\t").encode(),
    "a.tsv": CSV.replace(",", "\t").encode(),
    "a.csv.gz": gzip.compress(CSV.encode()),
    "spaced.csv": CSV.replace("query,document", "query, document").encode(),
}
"""Files that hold the same rows. Tests are named by the file: gzip holds the time."""


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_rows_however_the_file_was_written(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(WRITTEN[name])
    assert read(path) == ROWS
    assert problems(path) == []


def test_a_marked_text_file_and_gzip_by_content(tmp_path):
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"\xef\xbb\xbfone\r\ntwo\rthree"))
    assert read_texts(tmp_path / "a.txt") == {"1": "one", "2": "two", "3": "three"}
    (tmp_path / "a.txt.gz").write_bytes(b"one")
    assert read_texts(tmp_path / "a.txt.gz") == {"1": "one"}


FIELDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=4),
    st.sampled_from([",", ";", "\t"]),
)
def test_csv_reads_what_csv_writes(tmp_path_factory, rows, delimiter):
    import csv

    path = tmp_path_factory.getbasetemp() / "written.csv"
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL)
        writer.writerows([("query", "document"), *rows])
    assert [tuple(row.values()) for row in read(path)] == rows


def test_places_in_a_csv_are_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('query,document\n"a\nb",c\n\nd,e,f\n"é",g\n', encoding="latin-1")
    found: list[Any] = list(read_rows(path, PLAIN))
    assert [row.place for row in found] == [f"{path}:{line}" for line in (2, 5, 6)]
    assert found[0].value == {"query": "a\nb", "document": "c"}
    assert "3 fields, but the first line names 2" in found[1].detail
    assert "not UTF-8" in found[2].detail


@pytest.mark.parametrize("name", malformed.CSV)
def test_malformed_csv_is_refused_by_file(name, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(malformed.CSV[name])
    with pytest.raises(ValueError, match=r"a\.csv") as error:
        build(tmp_path, path)
    assert len(str(error.value)) < 1500


@pytest.mark.parametrize("name", malformed.JSON_LINES)
def test_malformed_json_lines_are_refused_by_file(name, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(malformed.JSON_LINES[name])
    with pytest.raises(ValueError, match=r"a\.jsonl") as error:
        build(tmp_path, path)
    assert len(str(error.value)) < 1500


def test_a_wrong_column_is_said_once_with_the_nearest_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES * 100)
    columns = ColumnsConfig(query="qeury")
    for call in (
        lambda: build(tmp_path, path, columns),
        lambda: check_source(SourceConfig(path=str(path), columns=columns)),
    ):
        with pytest.raises(ValueError, match=r"no column `qeury`") as error:
            call()
        message = str(error.value)
        assert message.count("qeury") == 1
        assert "did you mean `query`?" in message
        assert "its columns: `query`, `document`" in message


def test_a_field_that_single_rows_lack_is_said_of_those_rows(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"document": "x"}\n' + LINES)
    with pytest.raises(ValueError, match=r"a\.jsonl:1: no field `query`"):
        build(tmp_path, path)
    check_source(SourceConfig(path=str(path)))


NEGATIVES = {
    "missing": {},
    "null": {"neg": None},
    "one text": {"neg": "far off"},
    "empty text": {"neg": ""},
    "list": {"neg": ["far off", "further"]},
    "empty list": {"neg": []},
}


def test_negatives_may_be_missing_null_one_text_or_a_list(tmp_path):
    rows = [
        {"query": f"query {name}", "document": f"answer {name}", **fields}
        for name, fields in NEGATIVES.items()
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, pairs = build(tmp_path, path, ColumnsConfig(negatives="neg"))
    found = [
        [pairs.documents[row] for row in pairs.train.negatives[i]]
        for i in range(len(rows))
    ]
    assert found == [[], [], ["far off"], [], ["far off", "further"], []]


def test_negatives_that_no_row_has_are_a_mistake(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    with pytest.raises(ValueError, match=r"no row has the field `neg`"):
        build(tmp_path, path, ColumnsConfig(negatives="neg"), on_invalid="skip")


def test_a_line_of_a_gigabyte_ends_early_with_little_memory(tmp_path):
    path = malformed.long_line(tmp_path)
    code = (
        "from pathlib import Path\nfrom cdejax.config import ColumnsConfig\n"
        "from cdejax.data.files import read_rows\n"
        f"*_, last = read_rows(Path({str(path)!r}), ColumnsConfig())\n"
        "print(last.place, last.detail)"
    )

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (500 << 20, 500 << 20))

    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=small,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{path}:2 a line of more than 32 MiB")
