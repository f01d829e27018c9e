"""Which documents of a batch are a query's positives, negatives, or ignored.

The relation is never stored as a matrix (65,536² booleans are 4.3 GB): it is stored as
ids per query and document, and evaluated for one block of columns at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from cdejax.typing import AnyArray

Duplicates = Literal["ignore", "positive"]

TIE = 1e-6
"""Surrogate scores this close to the threshold count as reaching it. Ties have to be
masked, and equal scores may differ by the order of their float32 sums."""


class QueryRows(NamedTuple):
    """The data of each query that the relation depends on.

    Text ids are shared by queries and documents: equal ids mean equal texts.
    """

    row: Int[AnyArray, "queries"]
    """Row of the global batch; the query's own positive has the same number."""
    query: Int[AnyArray, "queries"]
    """Id of the query's text."""
    document: Int[AnyArray, "queries"]
    """Id of the text of the query's own positive."""
    known: Int[AnyArray, "queries known"]
    """Ids of further known positives of the query, padded with -1."""
    teacher: Float[AnyArray, "queries teacher"]
    """Surrogate vector of the query (dimension 0 without a surrogate)."""
    positive_teacher: Float[AnyArray, "queries teacher"]
    """Surrogate vector of the query's own positive."""


class DocumentColumns(NamedTuple):
    """The data of each document that the relation depends on; ids as in `QueryRows`."""

    row: Int[AnyArray, "documents"]
    """Row of the global batch that the document belongs to."""
    query: Int[AnyArray, "documents"]
    """Id of that row's query text."""
    document: Int[AnyArray, "documents"]
    """Id of the document's text."""
    positive: Bool[AnyArray, "documents"]
    """Whether it is that row's positive (and not one of its hard negatives)."""
    real: Bool[AnyArray, "documents"]
    """False for columns that are padding, which are ignored for every query."""
    teacher: Float[AnyArray, "documents teacher"]
    """Surrogate vector of the document."""


class Cells(NamedTuple):
    """The relation of a block of queries to a block of documents."""

    own: Bool[AnyArray, "queries documents"]
    """The document is the query's own positive."""
    own_negative: Bool[AnyArray, "queries documents"]
    """The document is one of the query's own hard negatives."""
    positive: Bool[AnyArray, "queries documents"]
    """The document counts as a positive."""
    ignored: Bool[AnyArray, "queries documents"]
    """The document is neither positive nor negative: excluded from the denominator."""
    outside: Bool[AnyArray, "queries documents"]
    """The document is ignored, or the column is padding."""
    surrogate: Float[AnyArray, "queries surrogate_documents"]
    """Scores of the surrogate model (without columns unless requested)."""

    def transposed(self) -> Cells:
        """Returns the arrays transposed, as [documents, queries]."""
        return jax.tree.map(jnp.transpose, self)


@dataclass(frozen=True)
class Relation:
    """Which documents of a batch are positives, negatives, or ignored.

    A document answers a query if it is the query's own positive, has the same text as
    that positive, is the positive of a row with the same query text, or is a known
    positive. Answers other than the query's own positive are further positives or are
    ignored, depending on `duplicates`. A document with the query's own text that is not
    an answer is ignored: a text must not be pushed away from itself.

    With a margin, documents whose surrogate score is at least the positive's score plus
    the margin are ignored as false negatives, including ties and hard negatives (CDE,
    S(q, d) = {d' : f(q, d') >= f(q, d) + margin}). Positives are never ignored.
    """

    duplicates: Duplicates = "ignore"
    """How to treat answers other than the query's own positive."""
    margin: float | None = None
    """Margin of the false-negative mask, on surrogate scores; None for no mask."""

    def cells(
        self, queries: QueryRows, documents: DocumentColumns, *, surrogate: bool = False
    ) -> Cells:
        """Evaluates the relation of some queries to some documents.

        Args:
          queries: ids and surrogate vectors of the queries.
          documents: ids and surrogate vectors of the documents.
          surrogate: whether to compute `Cells.surrogate`.

        Raises:
          ValueError: a margin is set or surrogate scores are requested, but there are
            no surrogate vectors.
        """
        same_row = documents.row == queries.row[:, None]
        own = documents.positive & same_row
        answers = documents.document == queries.document[:, None]
        answers |= documents.positive & (documents.query == queries.query[:, None])
        for ids in queries.known.T:
            answers |= documents.document == ids[:, None]
        positive = own | answers if self.duplicates == "positive" else own
        ignored = answers | (documents.document == queries.query[:, None])
        scores = jnp.zeros((len(queries.row), 0))
        if self.margin is not None or surrogate:
            scores = self._surrogate_scores(queries, documents)
        if self.margin is not None:
            ignored |= scores >= _own_score(queries) + self.margin - TIE
        real = documents.real
        ignored = ignored & ~positive & real
        return Cells(
            own=own & real,
            own_negative=same_row & ~documents.positive & real,
            positive=positive & real,
            ignored=ignored,
            outside=ignored | ~real,
            surrogate=scores if surrogate else scores[:, :0],
        )

    def _surrogate_scores(
        self, queries: QueryRows, documents: DocumentColumns
    ) -> Float[AnyArray, "queries documents"]:
        if queries.teacher.shape[-1] == 0:
            if self.margin is None:
                raise ValueError(
                    "the objective needs surrogate scores, but there are no surrogate "
                    "vectors. Give vectors or choose another objective."
                )
            raise ValueError(
                f"false_negative_margin is {self.margin}, but there are no surrogate "
                "vectors. Give vectors or set it to null."
            )
        return jnp.einsum(
            "qt,dt->qd",
            queries.teacher.astype(jnp.float32),
            documents.teacher.astype(jnp.float32),
            precision=jax.lax.Precision.HIGHEST,
        )


def in_batch(queries: int, documents: int) -> tuple[QueryRows, DocumentColumns]:
    """Rows and columns for plain in-batch negatives: document i answers only query i.

    Further documents are negatives of every query.

    Args:
      queries: number of queries.
      documents: number of documents.

    Raises:
      ValueError: there are fewer documents than queries.
    """
    if documents < queries:
        raise ValueError(
            f"{queries} queries, but {documents} documents: document i has to be the "
            "positive of query i."
        )
    row, column = np.arange(queries), np.arange(documents)
    none = np.zeros((queries, 0), np.float32)
    rows = QueryRows(
        row, documents + row, row, np.zeros((queries, 0), np.int32), none, none
    )
    columns = DocumentColumns(
        column,
        documents + column,
        column,
        column < queries,
        np.ones(documents, bool),
        np.zeros((documents, 0), np.float32),
    )
    return rows, columns


def _own_score(queries: QueryRows) -> Float[AnyArray, "queries 1"]:
    """The surrogate score of each query's own positive."""
    teacher = queries.teacher.astype(jnp.float32)
    own = jnp.sum(teacher * queries.positive_teacher.astype(jnp.float32), -1)
    return own[:, None]
