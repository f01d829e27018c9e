"""The same rows for every kind of source."""

import gzip
import json
from pathlib import Path

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.rows import Row
from cdejax.data.sources import read_source

ROWS = [
    {"query": f"quéry {i} 😀", "document": f"document {i}", "negatives": ["a"] * i}
    for i in range(5)
]
COLUMNS = ColumnsConfig(negatives="negatives")


def values(source: SourceConfig) -> list[dict]:
    rows = list(read_source(source).rows)
    assert all(isinstance(row, Row) for row in rows)
    return [row.value for row in rows if isinstance(row, Row)]


def write_lines(path: Path, rows: list[dict]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(
        gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    )
