"""The kinds of sources, and what the rest of the package asks of one."""

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
"""All kinds. A path is of the first kind that takes it; messages keep the order."""


def source_of(config: SourceConfig) -> Source:
    """The source that a configuration describes, unopened.

    Raises:
      ValueError: its path is of no kind that there is.
    """
    for kind in SOURCES:
        if (source := kind.of(config)) is not None:
            return source
    raise _unknown(config.path)


def read_source(config: SourceConfig) -> Reading:
    """Opens a source.

    Lines are read one by one (those of white space are no rows); Parquet, Hugging Face
    and TFDS rows carry their number from 1. A file without rows among others is named
    in the log and in `facts`.

    Raises:
      ValueError: there is no such source, or it lacks a column of `config.columns`.
    """
    return source_of(config).read()


def check_source(config: SourceConfig) -> None:
    """Looks at a source before any work: is it there, and has it the columns?

    Of files, the first rows of the first are read, of a BEIR folder the first of its
    corpus and queries; what comes by a library is only opened.

    Raises:
      ValueError: as `read_source`; or the first rows lack a column.
    """
    source_of(config).check()


def source_fingerprint(config: SourceConfig) -> Any:
    """What decides a source's content, beside its configuration: hashes or versions."""
    return source_of(config).fingerprint()


def data_spec(config: DataConfig) -> dict[str, Any]:
    """What decides the rows: settings and contents of all sources, not licences."""
    settings = jsonable(config)
    for source in settings["sources"]:
        source.pop("license", None)
    contents = [source_fingerprint(source) for source in config.sources]
    return {"data": settings, "sources": contents}


def hub_dataset(path: str) -> str | None:
    """Name on the Hugging Face hub of the dataset that a source's path names."""
    names = (kind.hub_dataset(path) for kind in SOURCES)
    return next((name for name in names if name is not None), None)


def _unknown(path: str) -> ValueError:
    """No kind takes the path: nothing is there, or a file that none of them reads."""
    strange = next((f for f in matching_files(path) if not is_row_file(f)), None)
    reason = f"{path!r}: no such file{hub_hint(path)}"
    if strange is not None:
        reason = f"{str(strange)!r}: unknown kind"
    forms = [form for kind in SOURCES for form in kind.forms]
    listed = f"{', '.join(forms[:-1])} or {forms[-1]}"
    return ValueError(f"source {reason}. A source is {listed}.")
