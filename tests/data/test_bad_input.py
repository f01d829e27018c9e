"""One distinct check for each kind of bad input: file, line, value and fix named."""

import gzip
import json
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, DataConfig, SourceConfig
from cdejax.data.pairs import Pairs, build_pairs

GOOD = {"query": "what is it", "document": "an answer", "negatives": ["no"]}
COLUMNS = ColumnsConfig(negatives="negatives")


def row(**changes: object) -> bytes:
    """A good row with changes, `...` taking a field out."""
    fields = {**GOOD, **changes}
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()


LINES: dict[str, tuple[bytes, list[str]]] = {
    "not JSON": (
        b'{"query": "a", ',
        ["not JSON", r'{"query": "a",', "one object a line"],
    ),
    "not an object": (b'["a", "b"]', ["no object with named fields", "['a', 'b']"]),
    "missing field": (
        row(document=...),
        ["no field `document`", "`query`", "`columns`"],
    ),
    "null": (row(query=None), ["field `query` is null"]),
    "wrong type": (row(document=["a"]), ["field `document` is a list", "['a']"]),
    "number": (row(query=3), ["field `query` is a int", "3"]),
    "empty text": (row(query=""), ["field `query` is empty", "''"]),
    "white space": (row(document=" \n\t"), ["field `document` is empty", r"' \n\t'"]),
    "lone surrogate": (
        row(query="a \ud83d b"),
        ["`query` holds the lone surrogate '\\ud83d' at character 2"],
    ),
    "NUL": (row(document="ab\0c"), ["`document` holds a NUL at character 2", "remove"]),
    "too long": (
        row(document="x" * 201),
        ["`document` has 201 characters", "max_characters is 200"],
    ),
    "wrong encoding": (
        '{"query": "é", "document": "b"}'.encode("latin-1"),
        ["not UTF-8", r"b'\xe9' at byte 11", "convert"],
    ),
    "negatives no list": (
        row(negatives=3),
        ["field `negatives` is 3", "list of"],
    ),
    "negative null": (
        row(negatives=["a", None]),
        ["field `negatives`, number 1, is null"],
    ),
}


def build(folder: Path, content: bytes, name: str = "rows.jsonl", **options: object):
    """Runs the pairs stage on one file."""
    (folder / name).write_bytes(content)
    source = SourceConfig(path=str(folder / name), columns=COLUMNS)
    config = DataConfig(sources=(source,), **options)  # type: ignore[arg-type]
    return build_pairs(config, 0, folder / "out")


@pytest.mark.parametrize("kind", LINES)
def test_bad_line(kind: str, tmp_path: Path) -> None:
    line, expected = LINES[kind]
    with pytest.raises(ValueError, match="1 problem") as error:
        build(tmp_path, row() + b"\n" + line + b"\n", max_characters=200)
    for part in [f"{tmp_path}/rows.jsonl:2: ", *expected, "on_invalid: skip"]:
        assert part in str(error.value)


@pytest.mark.parametrize("kind", LINES)
def test_bad_line_is_skipped_and_counted(kind: str, tmp_path: Path) -> None:
    content = row() + b"\n" + LINES[kind][0] + b"\n" + row(query="another") + b"\n"
    counts = build(tmp_path, content, max_characters=200, on_invalid="skip")
    assert (counts["rows"], counts["invalid_rows"], counts["train_rows"]) == (3, 1, 2)
    assert sum(counts["invalid"].values()) == 1
    listed = json.loads((tmp_path / "out" / "invalid.jsonl").read_text())
    assert listed["place"].endswith("rows.jsonl:2")


def test_every_bad_row_is_listed(tmp_path: Path) -> None:
    content = b"\n".join([row(query="")] * 7 + [b"{"] * 20 + [row(document=None)])
    with pytest.raises(ValueError, match="28 problems") as error:
        build(tmp_path, content)
    message = str(error.value)
    assert "not JSON 20, empty text 7, null 1" in message
    assert "and 8 more; all are in" in message
    listed = (tmp_path / "out" / "invalid.jsonl").read_text().splitlines()
    places = [json.loads(line)["place"] for line in listed]
    assert places == [f"{tmp_path}/rows.jsonl:{n}" for n in range(1, 29)]


def test_a_row_reports_all_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 problems") as error:
        build(tmp_path, row(query="", document=None))
    assert "`query` is empty" in str(error.value)
    assert "`document` is null" in str(error.value)


@pytest.mark.parametrize("on_invalid", ["error", "skip"])
def test_truncated_gzip_stops_even_where_rows_are_skipped(
    on_invalid: str, tmp_path: Path
) -> None:
    rows = b"\n".join(row(query=f"query {i} {i * i}") for i in range(2000))
    content = gzip.compress(rows)
    with pytest.raises(ValueError, match="damaged gzip after line") as error:
        build(tmp_path, content[:-100], "rows.jsonl.gz", on_invalid=on_invalid)
    assert "rows.jsonl.gz" in str(error.value)
    assert "on_invalid" not in str(error.value)


def test_gzip_with_changed_bytes(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(row()))
    content[-6] ^= 1
    with pytest.raises(ValueError, match="damaged gzip"):
        build(tmp_path, bytes(content), "rows.jsonl.gz")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_no_rows(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows.jsonl: holds no rows; fill it"):
        build(tmp_path, content, on_invalid="skip")


def test_no_valid_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no valid row in any source.*null 1"):
        build(tmp_path, row(query=None), on_invalid="skip")


def test_no_source(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.sources is empty"):
        build_pairs(DataConfig(), 0, tmp_path / "out")


def test_conflicting_ids(tmp_path: Path) -> None:
    rows = [row(id="7"), row(id="7"), row(id="7", document="another")]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(rows))
    source = SourceConfig(
        path=str(tmp_path / "rows.jsonl"), columns=ColumnsConfig(document_id="id")
    )
    with pytest.raises(ValueError, match="1 problem") as error:
        build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "out")
    assert f"{tmp_path}/rows.jsonl:3: document id '7' has another text than" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.jsonl", "no such file"),
        ("*.parquet", "no such file"),
        ("notes.txt", "unknown kind"),
        ("gone/folder:test", "no such file"),
    ],
)
def test_no_such_source(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    config = DataConfig(sources=(SourceConfig(path=str(tmp_path / path)),))
    with pytest.raises(ValueError, match=message) as error:
        build_pairs(config, 0, tmp_path / "out")
    assert path.split("/")[0] in str(error.value)
    assert "python-packages" in str(error.value)


def test_domain_given_twice(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(row(domain="a"))
    source = SourceConfig(
        path=str(tmp_path / "rows.jsonl"),
        columns=ColumnsConfig(domain="domain"),
        domain="b",
    )
    with pytest.raises(ValueError, match="keep one of them"):
        build_pairs(DataConfig(sources=(source,)), 0, tmp_path / "out")


def test_pairs_folder_with_a_file_missing(tmp_path: Path) -> None:
    build(tmp_path, row())
    (tmp_path / "out" / "train" / "document.npy").unlink()
    with pytest.raises(ValueError, match=r"document\.npy missing"):
        Pairs.open(tmp_path / "out")
    with pytest.raises(ValueError, match="no pairs artefact"):
        Pairs.open(tmp_path)
