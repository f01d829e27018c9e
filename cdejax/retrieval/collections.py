"""Evaluation collections: BEIR folders and the held-out pairs."""

from __future__ import annotations

import difflib
import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int

from cdejax.config import EvaluationConfig
from cdejax.data.beir import (
    Collection,
    check_folder,
    collection_folder,
    read_collection,
)
from cdejax.data.split import hold_out, row_groups

if TYPE_CHECKING:
    from cdejax.data.pairs import Pairs


FEW = 50
"""Number of queries below which checkpoint selection is mostly chance."""
_log = logging.getLogger(__name__)


def evaluation_collections(
    config: EvaluationConfig,
    pairs: Pairs | None = None,
    validation: Bool[np.ndarray, "heldout"] | None = None,
) -> dict[str, Collection]:
    """The collections that a recipe evaluates on, by their name in reports.

    BEIR collections are named after their folder (with the split, if one is given), the
    held-out pairs `held-out`, their domains `held-out/DOMAIN`. Domains without held-out
    pairs are left out.

    Args:
      config: `evaluation` of a recipe.
      pairs: pairs with a held-out part.
      validation: held-out pairs whose queries are left out (see `validation_rows`).

    Raises:
      ValueError: nothing to evaluate on, or two folders with the same name.
    """
    found: dict[str, Collection] = {}
    for path in config.collections:
        name = Path(path).name
        if name in found:
            raise ValueError(
                f"evaluation.collections: two are called {name!r}; rename a folder"
            )
        found[name] = read_collection(path, unknown_ids=config.unknown_ids)
    if pairs is not None and len(pairs.heldout):
        table = pairs.heldout
        shown = np.ones(len(table), bool) if validation is None else ~validation
        if config.heldout:
            found["held-out"] = heldout_collection(pairs, asked=shown)
        held = np.unique(table.domain) if config.heldout_by_domain else []
        for index in held:
            domain = pairs.domains[index]
            if shown[table.domain == index].any():
                collection = heldout_collection(pairs, domain, asked=shown)
                found[f"held-out/{domain}"] = collection
            else:
                _log.warning("held-out/%s: checkpoints are chosen on all of it", domain)
    if not found:
        raise ValueError(
            "nothing to evaluate on: name evaluation.collections, or hold out pairs "
            "(data.heldout_fraction) and set evaluation.heldout"
        )
    return found


def collection_folders(config: EvaluationConfig) -> list[Path]:
    """Folders of the BEIR collections that a recipe names, each checked.

    Raises:
      ValueError: a folder does not exist, or lacks a file or a field.
    """
    try:
        found = [collection_folder(path) for path in config.collections]
        for folder, split in found:
            check_folder(folder, split)
        return [folder for folder, _ in found]
    except ValueError as error:
        raise ValueError(f"evaluation.collections: {error}") from None


def validation_rows(
    pairs: Pairs, share: float, seed: int
) -> Bool[np.ndarray, "heldout"]:
    """Mask of the held-out pairs that checkpoints are selected on.

    They are drawn in whole groups: pairs with an equal query or an equal document stay
    together. The choice depends on texts and seed, not on the order of the pairs.

    Args:
      pairs: pairs with a held-out part.
      share: share of the held-out pairs to draw, 0 to 1.
      seed: seed of the choice.

    Raises:
      ValueError: the share is above 0, but every group of pairs is larger than it.
    """
    table = pairs.heldout
    if share in (0, 1) or not len(table):
        return np.full(len(table), bool(share))
    texts = (pairs.documents[row] for row in table.document.tolist())
    hashes = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    content = np.array([int.from_bytes(x, "little") for x in hashes], np.uint64)
    groups = row_groups(
        pairs.document_content[table.document], pairs.query_content[table.query]
    )
    chosen = hold_out(groups, content, seed=seed, fraction=share)
    if not chosen.any():
        raise ValueError(
            f"{len(table):,} held-out pairs are too few to choose checkpoints on a "
            f"share of {share} of them: hold out more (data.heldout_fraction), raise "
            "evaluation.validation_fraction, or set training.eval_every to 0"
        )
    return chosen


def validation_collection(pairs: Pairs, share: float, seed: int) -> Collection | None:
    """Collection to select checkpoints on: queries of `validation_rows`, all documents.

    Returns:
      The collection, or None if the share is 0 or nothing is held out.

    Raises:
      ValueError: as `validation_rows`.
    """
    if not share or not len(pairs.heldout):
        return None
    return heldout_collection(pairs, asked=validation_rows(pairs, share, seed))


def heldout_collection(
    pairs: Pairs,
    domain: str | None = None,
    asked: Bool[np.ndarray, "heldout"] | None = None,
) -> Collection:
    """The held-out pairs as a collection, of all domains or of one.

    Documents are the held-out pairs' documents and their negatives, each text once;
    queries likewise. A document is relevant to a query if some held-out pair joins it
    to an equal query text.

    Args:
      pairs: pairs with a held-out part.
      domain: use only pairs of this domain (default: all).
      asked: use only the queries of these pairs (default: all); documents are not
        restricted.

    Raises:
      ValueError: an unknown domain, or no held-out pairs in it.
    """
    table = pairs.heldout
    rows = np.arange(len(table))
    if domain is not None:
        rows = np.flatnonzero(table.domain == _domain(pairs, domain))
    if not len(rows):
        where = f" in domain {domain!r}" if domain else ""
        raise ValueError(
            f"no held-out pairs{where}; set data.heldout_fraction when building them"
        )
    negatives = [table.negatives[row] for row in rows.tolist()]
    candidates = np.concatenate([table.document[rows], *negatives]).astype(np.int64)
    documents = _unique(pairs.document_content, candidates)
    asking = rows if asked is None else rows[asked[rows]]
    queries = _unique(pairs.query_content, table.query[asking])
    qrels = _qrels(pairs, queries, documents)
    texts = [pairs.documents[row] for row in documents.values()]
    return Collection(
        document_ids=[str(content) for content in documents],
        documents=texts,
        query_ids=[str(content) for content in queries],
        queries=[pairs.queries[row] for row in queries.values()],
        qrels=qrels,
        counts={
            "documents": len(texts),
            "empty_documents": sum(not text for text in texts),
            "queries": len(queries),
            "unjudged_queries": 0,
            "judgments": sum(map(len, qrels.values())),
        },
    )


def _domain(pairs: Pairs, name: str) -> int:
    if name not in pairs.domains:
        near = difflib.get_close_matches(name, pairs.domains, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"domain {name!r}: the pairs have no such domain{hint}")
    return pairs.domains.index(name)


def _unique(
    content: Int[np.ndarray, "rows"], rows: Int[np.ndarray, "chosen"]
) -> dict[int, int]:
    """The first of the rows with each content id, in order of appearance."""
    found: dict[int, int] = {}
    for row in rows.tolist():
        found.setdefault(int(content[row]), row)
    return found


def _qrels(
    pairs: Pairs, queries: dict[int, int], documents: dict[int, int]
) -> dict[str, dict[str, int]]:
    """Judgments: every held-out pair with both texts present, whatever its domain."""
    qrels: dict[str, dict[str, int]] = {str(content): {} for content in queries}
    asked = pairs.query_content[pairs.heldout.query].tolist()
    answer = pairs.document_content[pairs.heldout.document].tolist()
    for query, document in zip(asked, answer, strict=True):
        if query in queries and document in documents:
            qrels[str(query)][str(document)] = 1
    return qrels
