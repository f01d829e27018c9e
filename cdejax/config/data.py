"""Configuration of the pairs: sources, columns, validation and split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdejax.config.checks import check_at_least, check_given, check_share


@dataclass(frozen=True)
class ColumnsConfig:
    """Names of the fields of a source's rows."""

    query: str = "query"
    """Field with the query text."""
    document: str = "document"
    """Field with the text of the document that answers the query."""
    negatives: str | None = None
    """Field with a list of hard negative texts."""
    domain: str | None = None
    """Field with the domain; batches never mix domains."""
    query_id: str | None = None
    """Field with the query's id (default: the text is its own identity)."""
    document_id: str | None = None
    """Field with the document's id (default: the text is its own identity)."""

    def __post_init__(self) -> None:
        check_given(self, "to read the pairs", "query", "document")


@dataclass(frozen=True)
class SourceConfig:
    """One source of pairs."""

    path: str
    """`python-packages`, a .jsonl, .csv, .tsv or .parquet file (or a glob), a BEIR
    folder[:SPLIT], `hf:NAME[/CONFIG][:SPLIT]` or `tfds:NAME[/CONFIG][:SPLIT]`."""
    columns: ColumnsConfig = ColumnsConfig()
    """Names of the source's fields."""
    domain: str | None = None
    """Domain of all rows, for sources without a domain column."""
    license: str | None = None
    """Licence of the data, for the model card."""
    packages: tuple[str, ...] = ()
    """`python-packages`: distributions to read in addition to the standard library."""

    def __post_init__(self) -> None:
        check_given(self, "to read the pairs", "path")
        if self.packages and self.path != "python-packages":
            raise ValueError(
                f"packages: only read with `path: python-packages`, not {self.path!r}"
            )


@dataclass(frozen=True)
class DataConfig:
    """The training pairs: their sources, validation and held-out split."""

    sources: tuple[SourceConfig, ...] = ()
    """Sources, read in this order."""
    on_invalid: Literal["error", "skip"] = "error"
    """How to treat invalid rows: stop and list them all, or skip and count them."""
    max_characters: int = 1_000_000
    """A row with a longer text is invalid."""
    heldout_fraction: float = 0.0
    """Share of the pairs held out for evaluation, in whole groups: pairs of equal
    query, equal document or near-duplicate documents stay together."""
    heldout_rows: int | None = None
    """Maximum number of held-out pairs (without `heldout_fraction`: their number)."""
    near_duplicate: float = 0.7
    """Minimum estimated Jaccard similarity of word 3-grams at which two documents are
    kept on the same side of the split."""
    max_rows: int | None = None
    """Number of training pairs to sample (default: keep all)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_characters", "heldout_rows", "max_rows")
        check_share(self, "heldout_fraction")
        if not 0 < self.near_duplicate <= 1:
            raise ValueError(
                f"near_duplicate: {self.near_duplicate} must be greater than 0 and at "
                "most 1"
            )
