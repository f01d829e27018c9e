"""What a batch's loss is, from its texts and the list of pairs: no ids and no blocks.

Written without any of the package's code, so that a fault there shows here.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

POSITIVE, IGNORED, NEGATIVE, ABSENT = "positive", "ignored", "negative", "absent"


class Column(NamedTuple):
    """A document of a batch."""

    text: str
    row: int
    """The row that it belongs to."""
    positive: bool
    """It is that row's positive, not one of its hard negatives."""
    real: bool = True


def relation(
    queries: Sequence[str],
    columns: Sequence[Column],
    pairs: Collection[tuple[str, str]],
    *,
    duplicates: str,
    score: Callable[[int, int], float] = lambda row, column: 0.0,
    margin: float | None = None,
) -> np.ndarray:
    """What each document is to each query, cell by cell: one of the words above.

    Args:
      queries: texts, one a row of the batch.
      columns: its documents.
      pairs: every (query, document) that was read, sampled out or not.
      duplicates: what other answers count as.
      score: of the surrogate, for (row, column); with `margin`.
      margin: scores from the own document's plus this on are ignored.
    """
    own = {c.row: j for j, c in enumerate(columns) if c.positive}
    cells = np.full((len(queries), len(columns)), NEGATIVE, object)
    for i, query in enumerate(queries):
        for j, column in enumerate(columns):
            answers = (query, column.text) in pairs
            near = margin is not None and score(i, j) >= score(i, own[i]) + margin
            if not column.real:
                cells[i, j] = ABSENT
            elif j == own[i] or (answers and duplicates == "positive"):
                cells[i, j] = POSITIVE
            elif answers or near or column.text == query:
                cells[i, j] = IGNORED
    return cells


def mean_loss(query_vectors, document_vectors, cells, temperature):
    """The mean InfoNCE of a dense relation, differentiable."""
    unit = lambda x: x / jnp.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    logits = unit(query_vectors) @ unit(document_vectors).T / temperature
    positive = jnp.asarray(cells == POSITIVE)
    counted = positive | jnp.asarray(cells == NEGATIVE)
    finite = jnp.where(counted, logits, -jnp.inf)
    peak = finite.max(1, keepdims=True)
    partition = peak + jnp.log(jnp.exp(finite - peak).sum(1, keepdims=True))
    terms = jnp.where(positive, partition - logits, 0.0).sum(1) / positive.sum(1)
    return terms.mean()
