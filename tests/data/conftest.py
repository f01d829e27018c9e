"""A small BEIR folder."""

import gzip
import json
from pathlib import Path

import pytest

CORPUS = [
    {"_id": "d1", "title": "Title", "text": "text one"},
    {"_id": "d2", "title": "", "text": "text two"},
    {"_id": "d3", "title": "", "text": ""},
    {"_id": "d4", "text": "no title"},
]
QUERIES = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(1, 5)]
QRELS = ["q1\td1\t2", "q1\td2\t0", "q2\td4\t1", "q2\td1\t1", "q3\td2\t0"]


def jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(jsonl(CORPUS))
    (folder / "queries.jsonl.gz").write_bytes(gzip.compress(jsonl(QUERIES).encode()))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(header + "\n".join(QRELS) + "\n")
    return folder
