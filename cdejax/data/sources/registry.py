"""The kinds of sources, and the functions that the rest of the package uses."""

from __future__ import annotations

from typing import Any

from cdejax.config import DataConfig, SourceConfig
from cdejax.data.files import is_row_file
from cdejax.data.rows import Reading
from cdejax.data.sources.base import Source
from cdejax.data.sources.beir import BeirFolder
from cdejax.data.sources.files import RowFiles, matching_files
from cdejax.data.sources.huggingface import HuggingFaceDataset
from cdejax.data.sources.packages import PythonPackages
from cdejax.data.sources.tfds import TensorFlowDataset
from cdejax.folders.paths import hub_hint
from cdejax.storage.artifacts import jsonable

SOURCES: tuple[type[Source], ...] = (
    PythonPackages,
    RowFiles,
    BeirFolder,
    HuggingFaceDataset,
    TensorFlowDataset,
)
"""All kinds. The first kind that accepts a path is used; messages keep the order."""


def source_of(config: SourceConfig) -> Source:
    """The source that a configuration describes, unopened.

    Raises:
      ValueError: no kind accepts its path.
    """
    for kind in SOURCES:
        if (source := kind.of(config)) is not None:
            return source
    raise _unknown(config.path)


def read_source(config: SourceConfig) -> Reading:
    """Opens a source.

    Lines are read one by one (blank lines are skipped); Parquet, Hugging Face and TFDS
    rows are numbered from 1. If a source has several files, those without rows are
    logged and listed in `facts`.

    Raises:
      ValueError: there is no such source, or it lacks a column of `config.columns`.
    """
    return source_of(config).read()


def check_source(config: SourceConfig) -> None:
    """Checks before any work that a source exists and has the columns.

    This reads the first rows of the first file, or of a BEIR folder's corpus and
    queries; datasets that a library reads are only opened.

    Raises:
      ValueError: as `read_source`; or the first rows lack a column.
    """
    source_of(config).check()


def source_fingerprint(config: SourceConfig) -> Any:
    """What determines a source's content besides its settings: hashes or versions."""
    return source_of(config).fingerprint()


def data_spec(config: DataConfig) -> dict[str, Any]:
    """What determines the rows: settings and contents of all sources, not licences."""
    settings = jsonable(config)
    for source in settings["sources"]:
        source.pop("license", None)
    contents = [source_fingerprint(source) for source in config.sources]
    return {"data": settings, "sources": contents}


def hub_dataset(path: str) -> str | None:
    """Name on the Hugging Face Hub of the dataset at a source's path, if it has one."""
    names = (kind.hub_dataset(path) for kind in SOURCES)
    return next((name for name in names if name is not None), None)


def _unknown(path: str) -> ValueError:
    """The error if no kind accepts a path: missing, or a file of unknown format."""
    strange = next((f for f in matching_files(path) if not is_row_file(f)), None)
    reason = f"{path!r}: no such file{hub_hint(path)}"
    if strange is not None:
        reason = f"{str(strange)!r}: unknown kind"
    forms = [form for kind in SOURCES for form in kind.forms]
    listed = f"{', '.join(forms[:-1])} or {forms[-1]}"
    return ValueError(f"source {reason}. A source is {listed}.")
