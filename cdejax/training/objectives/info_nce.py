"""InfoNCE: softmax cross-entropy of each query's positives over the batch's documents.

van den Oord et al. 2018 (arXiv 1807.03748), equation 4, with cosine similarities and a
temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from cdejax.training.objectives.base import Objective, QueryTerms, Totals
from cdejax.training.objectives.blocks import BLOCK, batch_terms
from cdejax.training.objectives.reductions import NEVER, LogSumExp, Sum
from cdejax.training.relation import (
    Cells,
    DocumentColumns,
    Duplicates,
    QueryRows,
    Relation,
    in_batch,
)
from cdejax.typing import AnyArray


@dataclass(frozen=True)
class InfoNCE(Objective):
    """loss(q) = - mean over positives p of log( exp(s_qp) / sum over d of exp(s_qd) ).

    s is the cosine similarity divided by the temperature; d runs over all documents
    that are not ignored. Logits are float32 at full precision.
    """

    temperature: float
    """Cosine similarities are divided by it."""

    reductions: ClassVar = {
        "log_partition": LogSumExp,
        "positive": Sum,
        "positives": Sum,
    }

    def values(
        self, cosine: Float[Array, "queries block"], cells: Cells
    ) -> Mapping[str, Any]:
        """Logits of all documents and of the positives, and the mask of positives."""
        logits = jnp.where(cells.outside, NEVER, cosine / self.temperature)
        return {
            "log_partition": logits,
            "positive": jnp.where(cells.positive, logits, 0.0),
            "positives": cells.positive,
        }

    def loss(self, totals: Totals, columns: Totals) -> Float[Array, "queries"]:
        """The negative mean log-softmax of the query's positives."""
        del columns
        return totals["log_partition"] - totals["positive"] / totals["positives"]


def info_nce(
    query_vectors: Float[AnyArray, "queries dim"],
    document_vectors: Float[AnyArray, "documents dim"],
    queries: QueryRows | None = None,
    documents: DocumentColumns | None = None,
    *,
    temperature: float,
    duplicates: Duplicates = "ignore",
    margin: float | None = None,
    block: int = BLOCK,
) -> QueryTerms:
    """Computes the InfoNCE loss and metrics of each query.

    The loss of the batch is the mean of the queries' losses. Without `queries` and
    `documents`, document i answers query i, and further documents are negatives of
    every query (plain in-batch negatives).

    Args:
      query_vectors: embeddings of some or all queries, not normalised.
      document_vectors: embeddings of all documents of the global batch, not normalised.
      queries: ids and surrogate vectors of the queries.
      documents: ids and surrogate vectors of the documents.
      temperature: cosine similarities are divided by it.
      duplicates: how to treat further positives, see `Relation`.
      margin: margin of the false-negative mask, see `Relation`; None for no mask.
      block: number of columns of the score matrix per block.

    Raises:
      ValueError: only one of `queries` and `documents` is given; neither is given and
        there are fewer documents than queries; or a margin is given without surrogate
        vectors.
    """
    if (queries is None) != (documents is None):
        raise ValueError(
            "info_nce takes both `queries` and `documents`, or neither of them."
        )
    if queries is None or documents is None:
        queries, documents = in_batch(len(query_vectors), len(document_vectors))
    return batch_terms(
        InfoNCE(temperature),
        Relation(duplicates, margin),
        query_vectors,
        document_vectors,
        queries,
        documents,
        block=block,
    )
