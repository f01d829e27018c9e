"""The pairs artefact: validated, deduplicated, split pairs of texts, as integers.

Texts are stored once per domain; pairs, negatives and all later stages refer to them by
row number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

from cdejax.config import Config, DataConfig
from cdejax.data.collect import Collection, TextTable, collect
from cdejax.data.known_positives import KnownPositives
from cdejax.data.ragged import Ragged, RaggedWriter, TextRows, write_texts
from cdejax.data.sources import data_spec
from cdejax.data.split import hold_out, near_duplicate_groups, row_groups
from cdejax.data.validation import Report
from cdejax.storage.artifacts import (
    artifact_fingerprint,
    load_array,
    read_json,
    run_stage,
    write_json,
)

_KNOWN = "known.npy"
Negatives = dict[int, list[int]]


@dataclass(frozen=True)
class PairTable:
    """One part of the pairs, as row numbers into the text tables."""

    query: Int32[np.ndarray, "pairs"]
    document: Int32[np.ndarray, "pairs"]
    domain: Int32[np.ndarray, "pairs"]
    negatives: Ragged
    """Document rows of each pair's hard negatives."""

    def __len__(self) -> int:
        return len(self.query)

    @classmethod
    def open(cls, folder: str | Path) -> PairTable:
        """Memory-maps a part written by `build_pairs`."""
        folder = Path(folder)
        return cls(
            _load(folder, "query"),
            _load(folder, "document"),
            _load(folder, "domain"),
            Ragged.open(folder / "negatives"),
        )


@dataclass(frozen=True)
class Pairs:
    """A pairs artefact, memory-mapped."""

    folder: Path
    queries: TextRows
    """Query texts, unique within a domain."""
    documents: TextRows
    """Document texts, including those of negatives, unique within a domain."""
    query_content: Int64[np.ndarray, "queries"]
    """Content id of each query text: equal for equal texts, whatever their domain."""
    document_content: Int64[np.ndarray, "documents"]
    """Content ids of the documents; a query and a document of equal text share one."""
    query_domain: Int32[np.ndarray, "queries"]
    document_domain: Int32[np.ndarray, "documents"]
    domains: list[str]
    train: PairTable
    heldout: PairTable

    @classmethod
    def open(cls, folder: str | Path) -> Pairs:
        """Memory-maps the folder; ValueError if files are missing or truncated."""
        folder = Path(folder)
        names = folder / "domains.json"
        if not names.is_file():
            raise ValueError(f"{folder}: no pairs artefact (domains.json is missing).")
        return cls(
            folder,
            TextRows.open(folder / "queries"),
            TextRows.open(folder / "documents"),
            _load(folder, "query_content"),
            _load(folder, "document_content"),
            _load(folder, "query_domain"),
            _load(folder, "document_domain"),
            read_json(names),
            PairTable.open(folder / "train"),
            PairTable.open(folder / "heldout"),
        )

    @cached_property
    def fingerprint(self) -> str:
        """The artefact's fingerprint."""
        return artifact_fingerprint(self.folder)

    @cached_property
    def known(self) -> KnownPositives:
        """Known positives of the queries, from all valid rows of the sources.

        This includes rows that `max_rows` or the held-out part removes from training.

        Raises:
          ValueError: the artefact lacks them, since an earlier version wrote it.
        """
        if not (self.folder / _KNOWN).is_file():
            raise ValueError(
                f"{self.folder}: has no {_KNOWN} (known answers of all rows read); an "
                "earlier version made it. Train under another `name` or `output`, or "
                "move the recipe's folder away, so that the pairs are made again."
            )
        return KnownPositives(load_array(self.folder / _KNOWN))

    @cached_property
    def query_ids(self) -> list[str | None]:
        """External ids of the queries (None if the source has none)."""
        return _load_ids(self.folder / "query_ids.json", len(self.queries))

    @cached_property
    def document_ids(self) -> list[str | None]:
        """External ids of the documents (None if the source has none)."""
        return _load_ids(self.folder / "document_ids.json", len(self.documents))


def pairs_stage(config: Config, root: str | Path) -> Path:
    """Runs `build_pairs` as a stage; its inputs are the sources' contents.

    Raises:
      ValueError: no sources, invalid rows (see `cdejax.data.validation`), or a source
        that cannot be read.
    """
    spec = data_spec(config.data) | {"seed": config.seed}
    return run_stage(
        root,
        "pairs",
        spec,
        lambda folder: build_pairs(config.data, config.seed, folder),
    )


def build_pairs(config: DataConfig, seed: int, folder: Path) -> dict[str, Any]:
    """Reads, validates, deduplicates and splits all sources into `folder`.

    Duplicate pairs of a domain are merged, with the negatives of all. A negative is
    left out if it is a known positive of its query (in any source) or equals the
    query's text; so are negatives of training pairs that are equal or near-duplicate to
    a held-out document. All of these are counted. Known positives come from all valid
    rows, whatever part they end up in.

    Returns:
      Counts for the manifest: `sources` (of each: `path`, `rows`, `invalid_rows`,
      `rows_by_domain`, `packages` with versions); `rows`, `invalid_rows`, `invalid` (by
      kind), `duplicate_pairs`; `near_duplicate_documents`, `split_groups` and
      `largest_split_group` if something is held out; `negatives_known_positive`,
      `negatives_equal_query`, `negatives_held_out`, `left_out_by_max_rows`; `queries`,
      `documents`, `negatives`, `train_rows`, `heldout_rows`, and `domains` (rows of
      each part).

    Raises:
      ValueError: invalid rows with `on_invalid: error`, or no valid row at all.
    """
    if not config.sources:
        raise ValueError("data.sources is empty; name at least one source of pairs.")
    folder = Path(folder)
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    pairs, counts = collect(config, scratch, Report(folder / "invalid.jsonl"))
    dropped = _drop_false_negatives(pairs)
    heldout, forbidden, split_counts = _split(pairs, config, seed)
    train = _sample(np.flatnonzero(~heldout), config.max_rows, seed)
    leaking = _drop_negatives(pairs.negatives, train, forbidden)
    counts |= split_counts | dropped
    counts |= {
        "negatives_held_out": leaking,
        "left_out_by_max_rows": int((~heldout).sum()) - len(train),
    }
    parts = {"train": train, "heldout": np.flatnonzero(heldout)}
    counts |= _write(pairs, parts, folder)
    shutil.rmtree(scratch)
    return counts


def _drop_false_negatives(pairs: Collection) -> dict[str, int]:
    """Removes negatives that are known positives of their query or equal its text.

    Returns the number of each, for the manifest.
    """
    counts = {"negatives_known_positive": 0, "negatives_equal_query": 0}
    if not pairs.negatives:
        return counts
    queries, documents = pairs.queries.content, pairs.documents.content
    known = {
        (queries[q], documents[d])
        for q, d in zip(pairs.query, pairs.document, strict=True)
    }
    for row, negatives in pairs.negatives.items():
        query = queries[pairs.query[row]]
        unique = list(dict.fromkeys(negatives))
        others = [n for n in unique if (query, documents[n]) not in known]
        kept = [n for n in others if documents[n] != query]
        counts["negatives_known_positive"] += len(unique) - len(others)
        counts["negatives_equal_query"] += len(others) - len(kept)
        pairs.negatives[row] = kept
    return counts


def _split(
    pairs: Collection, config: DataConfig, seed: int
) -> tuple[Bool[np.ndarray, "pairs"], Bool[np.ndarray, "documents"], dict[str, Any]]:
    """Masks of the held-out pairs and of the documents that training must not see."""
    documents = np.array(pairs.documents.content)
    if not config.heldout_fraction and not config.heldout_rows:
        return np.zeros(len(pairs), bool), np.zeros(len(documents), bool), {}
    _, first, inverse = np.unique(documents, return_index=True, return_inverse=True)
    texts = TextRows.open(pairs.documents.folder)
    similar = near_duplicate_groups(texts, first, config.near_duplicate)[inverse]
    document = np.array(pairs.document)
    query = np.array(pairs.queries.content)[np.array(pairs.query)]
    groups = row_groups(similar[document], query)
    heldout = hold_out(
        groups,
        np.array(pairs.content_hash)[documents[document]],
        seed=seed,
        fraction=config.heldout_fraction,
        limit=config.heldout_rows,
    )
    counts = {
        "near_duplicate_documents": len(first) - len(np.unique(similar)),
        "split_groups": len(np.unique(groups)),
        "largest_split_group": int(np.bincount(groups).max()),
    }
    return heldout, np.isin(similar, similar[document[heldout]]), counts


def _sample(
    rows: Int[np.ndarray, "rows"], limit: int | None, seed: int
) -> Int[np.ndarray, "kept"]:
    """A seeded sample of at most `limit` of the rows, in their original order."""
    if limit is None or len(rows) <= limit:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))


def _drop_negatives(
    negatives: Negatives,
    rows: Int[np.ndarray, "rows"],
    forbidden: Bool[np.ndarray, "documents"],
) -> int:
    """Removes forbidden documents from the rows' negatives; returns their number."""
    dropped = 0
    for row in map(int, rows):
        if row in negatives:
            kept = [n for n in negatives[row] if not forbidden[n]]
            dropped += len(negatives[row]) - len(kept)
            negatives[row] = kept
    return dropped


def _write(
    pairs: Collection, parts: dict[str, Int[np.ndarray, "rows"]], folder: Path
) -> dict[str, Any]:
    """Writes the chosen pairs and the texts that they refer to, renumbered."""
    rows = np.concatenate(list(parts.values()))
    query, document = np.array(pairs.query), np.array(pairs.document)
    negatives = [n for row in map(int, rows) for n in pairs.negatives.get(row, ())]
    queries = _write_texts(pairs.queries, query[rows], folder, "query", "queries")
    used = np.concatenate([document[rows], np.array(negatives, document.dtype)])
    documents = _write_texts(pairs.documents, used, folder, "document", "documents")
    _write_known(pairs, queries >= 0, documents >= 0, folder)
    domain = np.array(pairs.queries.domain)[query]
    domains = list(pairs.domains)
    write_json(folder / "domains.json", domains)
    counts: dict[str, Any] = {
        "queries": int((queries >= 0).sum()),
        "documents": int((documents >= 0).sum()),
        "negatives": len(negatives),
        "domains": {name: {} for name in domains},
    }
    for part, chosen in parts.items():
        target = folder / part
        target.mkdir()
        np.save(target / "query.npy", queries[query[chosen]])
        np.save(target / "document.npy", documents[document[chosen]])
        np.save(target / "domain.npy", domain[chosen].astype(np.int32))
        _write_negatives(target / "negatives", pairs.negatives, chosen, documents)
        counts[f"{part}_rows"] = len(chosen)
        sizes = np.bincount(domain[chosen], minlength=len(domains))
        for name, size in zip(domains, sizes, strict=True):
            counts["domains"][name][part] = int(size)
    return counts


def _write_known(
    pairs: Collection,
    queries: Bool[np.ndarray, "queries"],
    documents: Bool[np.ndarray, "documents"],
    folder: Path,
) -> None:
    """Writes the known positives of all pairs, restricted to the texts kept."""
    contents, kept = [], np.ones(len(pairs), bool)
    for table, rows, written in (
        (pairs.queries, pairs.query, queries),
        (pairs.documents, pairs.document, documents),
    ):
        content = np.array(table.content)
        contents.append(content[np.array(rows)])
        kept &= np.isin(contents[-1], content[written])
    known = KnownPositives.of(*(content[kept] for content in contents))
    np.save(folder / _KNOWN, known.keys)


def _write_texts(
    table: TextTable, used: Int[np.ndarray, "uses"], folder: Path, one: str, many: str
) -> Int32[np.ndarray, "rows"]:
    """Writes the used rows of a table; returns each row's new number, or -1."""
    kept = np.unique(used)
    texts = TextRows.open(table.folder)
    write_texts(folder / many, (texts[row] for row in kept))
    np.save(folder / f"{one}_content.npy", np.array(table.content, np.int64)[kept])
    np.save(folder / f"{one}_domain.npy", np.array(table.domain, np.int32)[kept])
    if table.ids:
        write_json(folder / f"{one}_ids.json", [table.ids.get(int(r)) for r in kept])
    numbers = np.full(len(table), -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    return numbers


def _write_negatives(
    folder: Path,
    negatives: Negatives,
    rows: Int[np.ndarray, "rows"],
    numbers: Int32[np.ndarray, "documents"],
    block: int = 65536,
) -> None:
    def numbered(start: int) -> Iterator[Int32[np.ndarray, "negatives"]]:
        for row in map(int, rows[start : start + block]):
            yield numbers[np.array(negatives.get(row, ()), np.int64)]

    with RaggedWriter(folder, np.int32) as writer:
        for start in range(0, len(rows), block):
            writer.append(numbered(start))


def _load(folder: Path, name: str) -> np.ndarray:
    file = folder / f"{name}.npy"
    if not file.is_file():
        raise ValueError(f"{folder}: not a whole pairs artefact ({file.name} missing).")
    return load_array(file)


def _load_ids(file: Path, rows: int) -> list[str | None]:
    if not file.is_file():
        return [None] * rows
    return read_json(file)
