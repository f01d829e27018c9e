"""Which documents of a batch are a query's positives, and which are no negatives.

The relation is never a stored matrix (65,536² booleans are 4.3 GB): it is kept as ids
per row and evaluated for the block of columns at hand.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from cdejax.typing import AnyArray

Duplicates = Literal["ignore", "positive"]

TIE = 1e-6
"""Surrogate scores this close to the threshold count as reaching it: equal scores come
out of differently ordered float32 sums, and ties have to be masked."""


class QueryRows(NamedTuple):
    """What the relation needs to know of each query.

    Ids of texts number queries and documents together: equal ids, equal texts.
    """

    row: Int[AnyArray, "queries"]
    """Row of the global batch; the query's own positive carries the same number."""
    query: Int[AnyArray, "queries"]
    """Id of the query's text."""
    document: Int[AnyArray, "queries"]
    """Id of its positive's text."""
    known: Int[AnyArray, "queries known"]
    """Ids of further texts known to answer the query, filled up with -1."""
    teacher: Float[AnyArray, "queries teacher"]
    """Surrogate vector of the query (dimension 0: no surrogate)."""
    positive_teacher: Float[AnyArray, "queries teacher"]
    """Surrogate vector of its positive."""


class DocumentColumns(NamedTuple):
    """What the relation needs to know of each document; ids as in `QueryRows`."""

    row: Int[AnyArray, "documents"]
    """Row of the global batch that the document belongs to."""
    query: Int[AnyArray, "documents"]
    """Id of that row's query text."""
    document: Int[AnyArray, "documents"]
    """Id of the document's text."""
    positive: Bool[AnyArray, "documents"]
    """Whether it is that row's positive (and not one of its hard negatives)."""
    real: Bool[AnyArray, "documents"]
    """False for columns that only fill up a shape: no query sees them."""
    teacher: Float[AnyArray, "documents teacher"]
    """Surrogate vector of the document."""


class Cells(NamedTuple):
    """The relation of some queries to some documents."""

    own: Bool[AnyArray, "queries documents"]
    """The document is the row's own positive."""
    positive: Bool[AnyArray, "queries documents"]
    """The document counts as a positive."""
    ignored: Bool[AnyArray, "queries documents"]
    """The document is neither positive nor negative: out of the denominator."""
    outside: Bool[AnyArray, "queries documents"]
    """The same, or no document at all."""


def relate(
    queries: QueryRows,
    documents: DocumentColumns,
    *,
    duplicates: Duplicates = "ignore",
    margin: float | None = None,
) -> Cells:
    """Relates queries to documents.

    A document answers a query when it is the query's own positive, has the same text as
    that, is the positive of a row with the same query text, or is a known positive.
    Those beside the own one are further positives or ignored, as `duplicates` says. A
    document with the query's own text is ignored unless it answers the query: a text
    must not be pushed away from itself.
    With a margin, documents whose surrogate score reaches the positive's plus the
    margin are ignored as false negatives, ties included, hard negatives too (CDE,
    S(q, d) = {d' : f(q, d') >= f(q, d) + margin}); a positive never is.

    Raises:
      ValueError: a margin is given, but no surrogate vectors.
    """
    own = documents.positive & (documents.row == queries.row[:, None])
    answers = documents.document == queries.document[:, None]
    answers |= documents.positive & (documents.query == queries.query[:, None])
    for ids in queries.known.T:
        answers |= documents.document == ids[:, None]
    positive = own | answers if duplicates == "positive" else own
    ignored = answers | (documents.document == queries.query[:, None])
    if margin is not None:
        ignored |= _reaches_positive(queries, documents, margin)
    real = documents.real
    ignored = ignored & ~positive & real
    return Cells(own & real, positive & real, ignored, ignored | ~real)


def _reaches_positive(
    queries: QueryRows, documents: DocumentColumns, margin: float
) -> Bool[AnyArray, "queries documents"]:
    if queries.teacher.shape[-1] == 0:
        raise ValueError(
            f"false_negative_margin is {margin}, but there are no surrogate vectors. "
            "Give vectors or set it to null."
        )
    teacher = queries.teacher.astype(jnp.float32)
    score = jnp.einsum(
        "qt,dt->qd",
        teacher,
        documents.teacher.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    own = jnp.sum(teacher * queries.positive_teacher.astype(jnp.float32), -1)
    return score >= own[:, None] + margin - TIE
