"""Commands on exported models: `cdejax encode`, `search`, `context`, `bake`, `onnx`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from cdejax import Context, load
from cdejax.cli.options import (
    BakeOptions,
    ContextOptions,
    EncodeOptions,
    OnnxOptions,
    SearchOptions,
)
from cdejax.data.texts import is_text_file, read_texts
from cdejax.export import baked
from cdejax.export.onnx import add_onnx
from cdejax.folders.paths import MODEL_FILES, local_output
from cdejax.retrieval.search import search as nearest
from cdejax.storage import durable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdejax.embedding.embedder import Embedder
    from cdejax.models.context import Context

SHOWN = 20
"""Maximum number of queries in the table; a file of results holds all."""


def encode(options: EncodeOptions) -> Path:
    """Writes the vectors of a file's texts as float32 [texts, dim], in the same order.

    Returns:
      The written file.

    Raises:
      ValueError: invalid texts, an invalid model, a missing or unexpected context, or
        an output that exists or cannot be written.
    """
    if options.output.suffix != ".npy":
        raise ValueError(f"{options.output}: the vectors go to a .npy file")
    _check_output(options.output, options.overwrite, options.texts, options.context)
    texts = list(read_texts(options.texts).values())
    embedder = load(options.model)
    context = None
    if options.context is not None:
        context = _read_context(embedder, options.context, options.seed)
    elif embedder.context_size is not None:
        raise ValueError(
            f"{options.model} is contextual: give `--context` with documents of the "
            "corpus that the vectors are for (.txt or .jsonl), or a saved context"
        )
    vectors = embedder.encode(
        texts, options.kind, context, options.batch_size, show_progress=True
    )
    _write(options.output, lambda stream: np.save(stream, vectors))
    return options.output


def search(options: SearchOptions) -> RenderableType:
    """Ranks the documents for every query by cosine similarity.

    Returns:
      A table of the results of the first queries.

    Raises:
      ValueError: as `encode`, or no query is given.
    """
    if options.k < 1:
        raise ValueError(f"--k {options.k}: at least 1 is needed")
    if options.output is not None:
        read = options.documents, options.queries, options.context
        _check_output(options.output, options.overwrite, *read)
    queries = _queries(options)
    documents = read_texts(options.documents)
    texts = list(documents.values())
    embedder = load(options.model)
    context = None
    if options.context is not None:
        context = _read_context(embedder, options.context, options.seed)
    elif embedder.context_size is not None:
        context = embedder.context(texts, seed=options.seed)
    size = options.batch_size
    found = nearest(
        embedder.encode(list(queries.values()), "query", context, size),
        embedder.encode(texts, "document", context, size, show_progress=True),
        options.k,
    )
    results = _results(queries, documents, *found)
    if options.output is not None:
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in results)
        _write(options.output, lambda stream: stream.write(lines.encode()))
    return _table(results, options.output)


def onnx(options: OnnxOptions) -> Path:
    """Adds ONNX graphs to a model folder, or to a copy of it.

    Returns:
      The folder that holds the graphs.

    Raises:
      ValueError: as `cdejax.export.onnx.add_onnx`.
    """
    return add_onnx(
        options.model, options.output, int8=options.int8, overwrite=options.overwrite
    )


def make_context(options: ContextOptions) -> Path:
    """Chooses a context from a file's texts and saves it.

    Returns:
      The written folder.

    Raises:
      ValueError: invalid texts, a model that takes no context, an impossible choice of
        texts, or a folder that is not empty or cannot be written.
    """
    _check_folder(options.output, options.overwrite)
    texts = list(read_texts(options.texts).values())
    context = load(options.model).context(
        texts,
        options.size,
        options.seed,
        options.batch_size,
        show_progress=True,
        method=options.method,
        candidates=options.candidates,
        fill=options.fill,
    )
    try:
        context.save(options.output)
    except OSError as error:
        raise _unwritable(options.output, error) from None
    return options.output


def bake(options: BakeOptions) -> Path:
    """Writes a contextual model with a context folded in.

    Returns:
      The written folder.

    Raises:
      ValueError: as `cdejax.export.baked.export_baked`, or there is no context.
    """
    local_output(options.output, "--output")
    return baked.bake(options.model, Context.load(options.context), options.output)


def _queries(options: SearchOptions) -> dict[str, str]:
    """Queries by id, from the command line or from a file."""
    if bool(options.query) == (options.queries is not None):
        raise ValueError("give either `--query TEXT` or `--queries FILE`")
    if options.queries is not None:
        return read_texts(options.queries)
    if any(not query.strip() for query in options.query):
        raise ValueError("--query: the text is empty")
    return {str(number): text for number, text in enumerate(options.query, 1)}


def _read_context(embedder: Embedder, path: Path, seed: int) -> Context:
    """A saved context, or a new one from the texts of a file."""
    if is_text_file(path) or path.is_file():
        return embedder.context(list(read_texts(path).values()), seed=seed)
    return Context.load(path)


def _results(
    queries: dict[str, str],
    documents: dict[str, str],
    scores: np.ndarray,
    rows: np.ndarray,
) -> list[dict[str, Any]]:
    """One JSON object per query, with its documents best first."""
    ids, texts = list(documents), list(documents.values())
    return [
        {
            "query_id": id,
            "query": query,
            "results": [
                {
                    "rank": rank,
                    "id": ids[row],
                    "score": round(float(score), 6),
                    "text": texts[row],
                }
                for rank, (score, row) in enumerate(zip(*ranked, strict=True), 1)
            ],
        }
        for (id, query), *ranked in zip(queries.items(), scores, rows, strict=True)
    ]


def _table(results: list[dict[str, Any]], output: Path | None) -> RenderableType:
    """A table of the first queries' documents, and a note on where the rest is."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("rank", "score", "id", "text", title_justify="left")
    for entry in results[:SHOWN]:
        table.add_row("", "", "", f"[bold]{escape(entry['query'])}[/bold]")
        for hit in entry["results"]:
            text = " ".join(hit["text"].split())
            text = text if len(text) <= 100 else text[:99] + "…"
            score = f"{hit['score']:.4f}"
            table.add_row(str(hit["rank"]), score, escape(hit["id"]), escape(text))
        table.add_section()
    left = len(results) - SHOWN
    where = f"all results: {output}" if output else "--output FILE.jsonl keeps them"
    if left > 0 or output:
        more = f"{left:,} more queries; " if left > 0 else ""
        table.caption = escape(more + where)
    return table


def _check_output(path: Path, overwrite: bool, *inputs: Path | None) -> None:
    """Rejects, before any work, an output that cannot or must not be written."""
    local_output(path, "--output")
    if any(
        given and given.exists() and path.exists() and path.samefile(given)
        for given in inputs
    ):
        raise ValueError(f"{path}: is also an input; choose another name for --output")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: exists; choose another name or add --overwrite")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{path}: the folder {path.parent} cannot be written")


def _check_folder(path: Path, overwrite: bool) -> None:
    """Rejects a folder that a context cannot or should not be written to."""
    local_output(path, "--output")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file; name a folder")
    if any((path / name).is_file() for name in MODEL_FILES):
        raise ValueError(
            f"{path}: holds a model, which would be changed; name another folder"
        )
    held = path.iterdir() if path.is_dir() else ()
    if any(not durable.is_scratch(inner) for inner in held) and not overwrite:
        raise ValueError(
            f"{path}: is not empty; choose another name or add --overwrite"
        )


def _write(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes a file atomically: either completely or not at all."""
    try:
        durable.write_file(path, write)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ValueError:
    return ValueError(f"{path}: cannot be written ({durable.reason(error)})")
