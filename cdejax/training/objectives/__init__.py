"""Training objectives over the global batch.

- `Objective`: the base class: values per cell and how they are reduced.
- `InfoNCE`, `info_nce`: softmax over in-batch and hard negatives.
- `batch_terms`: loss and metrics of each query, in blocks of documents.
- `ring_terms`: the same, with documents that pass from device to device.
- `QueryTerms`: loss and metrics per query, which both functions return.
- `Sum`, `LogSumExp`, `Expectation`, `Maximum`: reductions that objectives can use.
"""

from cdejax.training.objectives.base import Objective, QueryTerms, Totals
from cdejax.training.objectives.blocks import BLOCK, batch_terms
from cdejax.training.objectives.info_nce import InfoNCE, info_nce
from cdejax.training.objectives.reductions import (
    NEVER,
    Expectation,
    LogSumExp,
    Maximum,
    Sum,
)
from cdejax.training.objectives.ring import ring_terms

__all__ = [
    "BLOCK",
    "NEVER",
    "Expectation",
    "InfoNCE",
    "LogSumExp",
    "Maximum",
    "Objective",
    "QueryTerms",
    "Sum",
    "Totals",
    "batch_terms",
    "info_nce",
    "ring_terms",
]
