"""BEIR folders: corpus.jsonl, queries.jsonl (plain or .gz) and qrels/SPLIT.tsv."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cdejax.config import ColumnsConfig
from cdejax.data.rows import Problem, Reading, Row, excerpt
from cdejax.data.sources import beir_folder, read_json_lines
from cdejax.data.validation import Report, text_problem

MAX_CHARACTERS = 10_000_000


@dataclass(frozen=True)
class Collection:
    """An evaluation collection: a corpus, and the queries that have an answer in it."""

    document_ids: list[str]
    documents: list[str]
    """Title, a space and the text; empty documents are kept."""
    query_ids: list[str]
    queries: list[str]
    qrels: dict[str, dict[str, int]]
    """Grades by query id and document id, of the queries in `query_ids`."""
    counts: dict[str, int]
    """`documents`, `empty_documents`, `queries`, `unjudged_queries` (left out: no
    document of theirs has a positive grade), `judgments`."""


class Judgment(NamedTuple):
    """A line of qrels."""

    place: str
    query_id: str
    document_id: str
    grade: int


def read_collection(path: str | Path, split: str | None = None) -> Collection:
    """Reads FOLDER or FOLDER:SPLIT (default split: `test`).

    Raises:
      ValueError: a file is missing or holds bad rows, all of which are listed; an id is
        used twice; a judgment names an unknown id; no query has a positive judgment.
    """
    folder, split = collection_folder(str(path), split or "test")
    documents, queries, judgments = _read_folder(folder, split)
    qrels: dict[str, dict[str, int]] = {}
    for judgment in judgments:
        grades = qrels.setdefault(judgment.query_id, {})
        grades[judgment.document_id] = judgment.grade
    kept = [id for id in queries if max(qrels.get(id, {}).values(), default=0) > 0]
    if not kept:
        raise ValueError(
            f"{folder}:{split}: no query has a document of positive grade."
        )
    return Collection(
        list(documents),
        list(documents.values()),
        kept,
        [queries[id] for id in kept],
        {id: qrels[id] for id in kept},
        {
            "documents": len(documents),
            "empty_documents": sum(not text for text in documents.values()),
            "queries": len(kept),
            "unjudged_queries": len(queries) - len(kept),
            "judgments": sum(len(qrels[id]) for id in kept),
        },
    )


def read_beir_pairs(folder: Path, split: str) -> Reading:
    """Pairs of a BEIR folder: one for every judgment of positive grade.

    Raises:
      ValueError: as `read_collection`.
    """
    documents, queries, judgments = _read_folder(folder, split)
    positive = [judgment for judgment in judgments if judgment.grade > 0]
    columns = ColumnsConfig(query_id="query_id", document_id="document_id")
    return Reading(_pairs(positive, queries, documents), columns, len(positive))


def _pairs(
    judgments: list[Judgment], queries: dict[str, str], documents: dict[str, str]
) -> Iterator[Row]:
    for place, query, document, _ in judgments:
        fields = {"query_id": query, "document_id": document}
        texts = {"query": queries[query], "document": documents[document]}
        yield Row(place, fields | texts)


def collection_folder(path: str, default: str = "test") -> tuple[Path, str]:
    """Splits FOLDER or FOLDER:SPLIT; ValueError if there is no such folder."""
    found = beir_folder(path, default)
    if found is None:
        raise ValueError(
            f"{path!r}: no such folder. Give a BEIR folder (corpus.jsonl, "
            "queries.jsonl, qrels/SPLIT.tsv; the .jsonl files may be .gz) as FOLDER or "
            "FOLDER:SPLIT."
        )
    return found


def _find(folder: Path, name: str) -> Path:
    for file in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if file.is_file():
            return file
    held = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
    raise ValueError(
        f"{folder}: no {name}.jsonl or {name}.jsonl.gz there (it holds {held}); "
        "a BEIR folder needs corpus, queries and qrels."
    )


def _read_folder(
    folder: Path, split: str
) -> tuple[dict[str, str], dict[str, str], list[Judgment]]:
    """Documents, queries and judgments; ValueError lists all bad rows of all files."""
    report = Report()
    documents = _read_texts(folder, "corpus", report, empty=True)
    queries = _read_texts(folder, "queries", report)
    judgments = _read_judgments(folder, split, report)
    _check_ids(judgments, queries, documents, report)
    report.stop("error", "Mend them, or write the collection again.")
    return documents, queries, judgments


def _read_texts(
    folder: Path, name: str, report: Report, *, empty: bool = False
) -> dict[str, str]:
    """Texts by id, in the file's order."""
    texts: dict[str, str] = {}
    for row in read_json_lines(_find(folder, name)):
        entry = row if isinstance(row, Problem) else _entry(row, texts, empty)
        if isinstance(entry, Problem):
            report.add([entry])
        else:
            texts[entry[0]] = entry[1]
    return texts


def _entry(row: Row, known: dict[str, str], empty: bool) -> tuple[str, str] | Problem:
    value = row.value
    if not isinstance(value, dict) or "_id" not in value or "text" not in value:
        detail = f"needs the fields `_id` and `text`: {excerpt(value)}"
        return Problem(row.place, "missing field", detail)
    id, parts = value["_id"], [value.get("title") or "", value["text"]]
    if not isinstance(id, (str, int)) or str(id) == "":
        detail = f"field `_id` is {excerpt(id)}; ids are texts or integers"
        return Problem(row.place, "id", detail)
    if str(id) in known:
        return Problem(row.place, "repeated id", f"id {str(id)!r} stands twice")
    for field, part in zip(("title", "text"), parts, strict=True):
        found = text_problem(part, MAX_CHARACTERS)
        if found and found[0] != "empty text":
            return Problem(row.place, found[0], f"field `{field}` {found[1]}")
    text = " ".join(parts).strip()
    if not text and not empty:
        return Problem(row.place, "empty text", "field `text` is empty")
    return str(id), text


def _read_judgments(folder: Path, split: str, report: Report) -> list[Judgment]:
    file = folder / "qrels" / f"{split}.tsv"
    if not file.is_file():
        splits = sorted(p.stem for p in (folder / "qrels").glob("*.tsv"))
        raise ValueError(
            f"{file}: no such file; splits there: {', '.join(splits) or 'none'}. "
            f"Name one as {folder}:SPLIT."
        )
    judgments = []
    lines = file.read_bytes().decode(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        place = f"{file}:{number}"
        if len(fields) == 3 and _is_integer(fields[2]):
            judgments.append(Judgment(place, fields[0], fields[1], int(fields[2])))
        elif number > 1 and line.strip():  # the first line is the header
            detail = f"needs query id, document id and integer grade: {excerpt(line)}"
            report.add([Problem(place, "judgment", detail)])
    return judgments


def _is_integer(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _check_ids(
    judgments: list[Judgment],
    queries: dict[str, str],
    documents: dict[str, str],
    report: Report,
) -> None:
    for place, query, document, _ in judgments:
        if query not in queries:
            detail = f"query id {query!r} is not in the queries file"
            report.add([Problem(place, "unknown id", detail)])
        if document not in documents:
            detail = f"document id {document!r} is not in the corpus file"
            report.add([Problem(place, "unknown id", detail)])
