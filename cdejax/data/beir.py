"""BEIR folders: corpus.jsonl, queries.jsonl (plain or .gz) and qrels/SPLIT.tsv."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from cdejax.data.files import read_json_lines
from cdejax.data.qrels import Judgment, qrels_file, read_judgments
from cdejax.data.rows import Problem, Row, excerpt
from cdejax.data.validation import Report, text_problem

MAX_CHARACTERS = 10_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collection:
    """An evaluation collection: a corpus, and queries with relevant documents in it."""

    document_ids: list[str]
    documents: list[str]
    """Title, a space and the text of each document; empty documents are kept."""
    query_ids: list[str]
    queries: list[str]
    qrels: dict[str, dict[str, int]]
    """Grades of the queries in `query_ids`, by query id and document id."""
    counts: dict[str, int]
    """`documents`, `empty_documents`, `queries`, `unjudged_queries` (left out, having
    no document of positive grade), `judgments`, `unknown_ids` (judgments left out since
    they name a query or document that does not exist)."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles by document id, of the documents that have one."""


class Folder(NamedTuple):
    """The content of a BEIR folder's files."""

    documents: dict[str, str]
    titles: dict[str, str]
    queries: dict[str, str]
    judgments: list[Judgment]


def beir_folder(path: str, default: str = "train") -> tuple[Path, str] | None:
    """Splits FOLDER[:SPLIT]; None if there is no such folder."""
    if Path(path).is_dir():
        return Path(path), default
    folder, _, split = path.rpartition(":")
    return (Path(folder), split) if folder and Path(folder).is_dir() else None


def read_collection(
    path: str | Path,
    split: str | None = None,
    *,
    unknown_ids: Literal["skip", "error"] = "skip",
) -> Collection:
    """Reads FOLDER or FOLDER:SPLIT (default split: `test`).

    Args:
      path: path of the folder, optionally with a split.
      split: the split, instead of SPLIT in `path`.
      unknown_ids: whether judgments of unknown queries or documents are left out
        (counted and logged) or are an error.

    Raises:
      ValueError: a file is missing or holds invalid rows, all of which are listed; an
        id is used twice; two judgments contradict each other; no query has a positive
        judgment.
    """
    folder, split = collection_folder(str(path), split or "test")
    documents, titles, queries, judgments = read_folder(folder, split)
    known = _known(judgments, queries, documents, unknown_ids)
    unknown = len(judgments) - len(known)
    qrels: dict[str, dict[str, int]] = {}
    for judgment in known:
        grades = qrels.setdefault(judgment.query_id, {})
        grades[judgment.document_id] = judgment.grade
    kept = [id for id in queries if max(qrels.get(id, {}).values(), default=0) > 0]
    if not kept:
        also = f" ({unknown:,} judgments name unknown ids)" if unknown else ""
        raise ValueError(
            f"{folder}:{split}: no query has a document of positive grade{also}."
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
            "unknown_ids": unknown,
        },
        titles,
    )


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


def check_folder(folder: Path, split: str) -> None:
    """Checks a BEIR folder before any work.

    Raises:
      ValueError: a file is missing, or its first row is invalid.
    """
    qrels_file(folder, split)
    for name in ("corpus", "queries"):
        row = next(iter(read_json_lines(_find(folder, name))), None)
        entry = _entry(row, {}, name == "corpus") if isinstance(row, Row) else row
        if isinstance(entry, Problem):
            raise ValueError(f"{entry.place}: {entry.detail}")


def _find(folder: Path, name: str) -> Path:
    for file in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if file.is_file():
            return file
    held = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
    raise ValueError(
        f"{folder}: no {name}.jsonl or {name}.jsonl.gz there (it holds {held}); "
        "a BEIR folder needs corpus, queries and qrels."
    )


def read_folder(folder: Path, split: str) -> Folder:
    """Everything in a folder; a ValueError lists all invalid rows of all files."""
    report = Report()
    documents, titles = _read_texts(folder, "corpus", report, empty=True)
    queries, _ = _read_texts(folder, "queries", report)
    judgments = []
    for read in read_judgments(qrels_file(folder, split), queries, documents):
        if isinstance(read, Problem):
            report.add([read])
        else:
            judgments.append(read)
    report.stop("error", "Fix them, or write the collection again.")
    return Folder(documents, titles, queries, judgments)


def _read_texts(
    folder: Path, name: str, report: Report, *, empty: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by id, in the file's order, and the titles that they start with."""
    texts: dict[str, str] = {}
    titles: dict[str, str] = {}
    for row in read_json_lines(_find(folder, name)):
        entry = row if isinstance(row, Problem) else _entry(row, texts, empty)
        if isinstance(entry, Problem):
            report.add([entry])
            continue
        id, title, text = entry
        texts[id] = text
        if title:
            titles[id] = title
    return texts, titles


def _entry(
    row: Row, known: dict[str, str], empty: bool
) -> tuple[str, str, str] | Problem:
    """Id, title, and the text, which includes the title."""
    value = row.value
    if not isinstance(value, dict) or "_id" not in value or "text" not in value:
        detail = f"needs the fields `_id` and `text`: {excerpt(value)}"
        return Problem(row.place, "missing field", detail)
    id, parts = value["_id"], [value.get("title") or "", value["text"]]
    if not isinstance(id, (str, int)) or str(id) == "":
        detail = f"field `_id` is {excerpt(id)}; ids are texts or integers"
        return Problem(row.place, "id", detail)
    if str(id) in known:
        return Problem(row.place, "repeated id", f"id {str(id)!r} appears twice")
    for key, part in zip(("title", "text"), parts, strict=True):
        found = text_problem(part, MAX_CHARACTERS)
        if found and found[0] != "empty text":
            return Problem(row.place, found[0], f"field `{key}` {found[1]}")
    text = " ".join(parts).strip()
    if not text and not empty:
        return Problem(row.place, "empty text", "field `text` is empty")
    return str(id), parts[0].strip(), text


def _known(
    judgments: list[Judgment],
    queries: Container[str],
    documents: Container[str],
    unknown_ids: Literal["skip", "error"],
) -> list[Judgment]:
    """The judgments whose query and document both exist."""
    report, known = Report(), []
    for judgment in judgments:
        if problem := unknown_id(judgment, queries, documents):
            report.add([problem])
        else:
            known.append(judgment)
    report.stop(
        unknown_ids,
        "Fix them, or leave them out with `evaluation.unknown_ids: skip`.",
    )
    if report.bad_rows:
        _log.warning(
            "%d of %d judgments name unknown ids and are left out, the first at %s",
            report.bad_rows,
            len(judgments),
            report.shown[0],
        )
    return known


def unknown_id(
    judgment: Judgment, queries: Container[str], documents: Container[str]
) -> Problem | None:
    """The problem of a judgment whose query or document does not exist, if any."""
    place, query, document, _ = judgment
    if query not in queries:
        return Problem(
            place, "unknown id", f"query id {query!r} is not in the queries file"
        )
    if document not in documents:
        return Problem(
            place, "unknown id", f"document id {document!r} is not in the corpus file"
        )
    return None
