"""Plain lists of texts for encoding and search: one per line or JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from cdejax.data.files import read_json_lines, read_lines, suffix
from cdejax.data.rows import Problem, Row, excerpt
from cdejax.data.validation import Report, text_problem

MAX_CHARACTERS = 10_000_000
_NAMES = (".txt", ".jsonl", ".ndjson")


def is_text_file(file: str | Path) -> bool:
    """Whether `read_texts` reads files with this name."""
    return suffix(file) in _NAMES


def read_texts(file: str | Path) -> dict[str, str]:
    """Texts by id, in the file's order.

    Both kinds may be gzip-compressed. A .txt file holds one text per line; ids are line
    numbers. A .jsonl file holds objects with `text`, an optional `title`, which is put
    before the text (as in BEIR), and an optional `_id` or `id` (default: the row's
    number).

    Raises:
      ValueError: no such file, another kind of file, no text in it, or invalid rows (no
        text, wrong type, empty, NUL, lone surrogate, repeated id), which are all listed
        by line.
    """
    file = Path(file)
    if not is_text_file(file):
        raise ValueError(f"{file}: give a .txt or .jsonl file (.jsonl.gz, too)")
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    report = Report()
    texts: dict[str, str] = {}
    rows = _read_lines(file) if suffix(file) == ".txt" else read_json_lines(file)
    for number, row in enumerate(rows, 1):
        entry = row if isinstance(row, Problem) else _entry(row, number, texts)
        if isinstance(entry, Problem):
            report.add([entry])
        else:
            texts[entry[0]] = entry[1]
    report.stop("error", "Fix or remove these lines.")
    if not texts:
        raise ValueError(f"{file}: holds no text")
    return texts


def _read_lines(file: Path) -> Iterator[Row | Problem]:
    """The lines of a text file as rows."""
    number = 0
    for _, content in read_lines(file):
        if isinstance(content, Problem):
            yield content
            return
        for line in content.splitlines():  # a carriage return ends a line, too
            number += 1
            yield _line(f"{file}:{number}", line)


def _line(place: str, line: bytes) -> Row | Problem:
    try:
        return Row(place, {"text": line.decode()})
    except UnicodeDecodeError as error:
        detail = f"not UTF-8 (byte {error.start} of the line); convert the file"
        return Problem(place, "wrong encoding", detail)


def _entry(
    row: Row, number: int, known: Mapping[str, str]
) -> tuple[str, str] | Problem:
    value = row.value
    if not isinstance(value, Mapping) or "text" not in value:
        detail = f"needs the field `text`: {excerpt(value)}"
        if isinstance(value, Mapping):
            detail = f"needs the field `text`; it has {', '.join(map(repr, value))}"
        return Problem(row.place, "missing field", detail)
    id = value.get("_id", value.get("id", number))
    if isinstance(id, bool) or not isinstance(id, (str, int)) or id == "":
        detail = f"the id is {excerpt(id)}; ids are texts or integers"
        return Problem(row.place, "id", detail)
    if str(id) in known:
        return Problem(row.place, "repeated id", f"id {str(id)!r} appears twice")
    title, text = value.get("title") or "", value["text"]
    for field, part in (("title", title), ("text", text)):
        found = text_problem(part, MAX_CHARACTERS)
        if found and found[0] != "empty text":
            return Problem(row.place, found[0], f"field `{field}` {found[1]}")
    joined = f"{title} {text}".strip() if title else text
    if not joined.strip():
        return Problem(row.place, "empty text", "there is no text")
    return str(id), joined
