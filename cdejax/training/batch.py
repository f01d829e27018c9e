"""The arrays of a training step, and the settings that decide their content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from cdejax.training.cache import Chunks
from cdejax.training.relation import DocumentColumns, QueryRows
from cdejax.typing import AnyArray


class Batch(NamedTuple):
    """The arrays of a step.

    The leading axis of every array is split over devices, but for `context_order`.
    """

    texts: tuple[Chunks, ...]
    """Queries, positives and hard negatives."""
    context: tuple[Chunks, ...]
    """Documents for the first stage (empty for a biencoder)."""
    query_at: Int[AnyArray, "queries"]
    """Index of each query's vector among those of its device's chunks."""
    document_at: Int[AnyArray, "documents"]
    """Index of each document's vector, as `query_at`."""
    context_at: Int[AnyArray, "places"]
    """Index of each context document's vector among those of the context's chunks."""
    query_rows: QueryRows
    """Relation ids of the queries."""
    document_columns: DocumentColumns
    """Relation ids of the documents."""
    context_order: Int[AnyArray, "context"]
    """Index of each context document among those gathered from all devices; replicated,
    so that random draws per context position do not depend on the device count."""


@dataclass(frozen=True)
class BatchSettings:
    """What decides the content and shapes of a step."""

    seed: int
    devices: int
    """Number of devices of all processes."""
    chunk_tokens: int
    """Token positions encoded at once on a device."""
    context_size: int
    """Context documents per step (0: biencoder)."""
    soft_tokens: int
    """Positions between a context and a text (0: biencoder)."""
    negatives_per_query: int
    """Hard negatives per query."""
    max_widths: int
    """Maximum number of padded row widths."""
    packed: bool
    """Whether texts that are not encoded with a context share rows."""

    def check(self, batch_size: int) -> None:
        """Refuses a number of pairs per step that does not fit.

        Raises:
          ValueError: it is not a multiple of the number of devices, or smaller than the
            context.
        """
        if batch_size % self.devices:
            raise ValueError(
                f"plan.batch_size is {batch_size}, which {self.devices} devices cannot "
                "share equally; choose a multiple of it"
            )
        check_context_size(self.context_size, batch_size)


def check_context_size(context: int, batch: int) -> None:
    """Refuses a context that a step's own documents cannot fill.

    Raises:
      ValueError: the model would be trained with another size than it is used with.
    """
    if context > batch:
        raise ValueError(
            f"model.context_size is {context}, but a step draws its context from the "
            f"documents of its own batch, which plan.batch_size makes {batch}; lower "
            f"model.context_size to {batch} or raise plan.batch_size to {context}"
        )


def fill_fraction(batch: Batch) -> float:
    """Fraction of the computed token positions that hold real tokens."""
    real = computed = 0
    for rows, count in (*batch.texts, *batch.context):
        real += rows.real_tokens()
        computed += int(np.sum(count)) * rows.ids[0].size
    return real / max(computed, 1)
