"""Configuration of the retrieval evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdejax.config.checks import check_at_least, check_given, check_share


@dataclass(frozen=True)
class EvaluationConfig:
    """Retrieval evaluation."""

    collections: tuple[str, ...] = ()
    """BEIR folders (FOLDER or FOLDER:SPLIT, default split `test`)."""
    unknown_ids: Literal["skip", "error"] = "skip"
    """How to treat judgments of queries or documents that a collection lacks: skip and
    count them, or stop."""
    ignore_identical_ids: bool = False
    """Leave documents with the query's id out of its ranking, as BEIR does, whatever
    their text (default: only if they also have the query's text)."""
    heldout: bool = True
    """Evaluate on the held-out pairs."""
    heldout_by_domain: bool = False
    """Also evaluate each domain of the held-out pairs separately."""
    validation_fraction: float | None = None
    """Share of the held-out pairs used to select checkpoints and left out of the report
    (default with `training.eval_every`: 0.2, or all if the report has no held-out
    pairs; without: 0)."""
    bm25: bool = True
    """Also evaluate BM25, as a baseline."""
    contexts: tuple[Literal["corpus", "null", "random", "other-domain"], ...] = (
        "corpus",
    )
    """contextual: which contexts to evaluate with."""
    batch_size: int = 128
    """Texts encoded at once on a device."""
    measures: tuple[str, ...] = ("nDCG@10", "R@100", "RR@10", "AP")
    """Measures of the rankings, as SYMBOL or SYMBOL@CUTOFF; the first one is charted
    and given with intervals."""
    bootstrap: int = 2000
    """Number of resamples for the 95 % paired-bootstrap intervals."""

    def __post_init__(self) -> None:
        check_given(self, "at least one", "measures")
        check_at_least(self, 1, "batch_size")
        check_at_least(self, 2, "bootstrap")
        if self.validation_fraction is not None:
            check_share(self, "validation_fraction")
