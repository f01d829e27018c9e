"""The interface of sources."""

from __future__ import annotations

import dataclasses
import importlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.rows import Reading


@dataclasses.dataclass(frozen=True)
class Source(ABC):
    """A configured source of pairs; each kind is a subclass listed in `registry`."""

    config: SourceConfig

    forms: ClassVar[tuple[str, ...]]
    """Forms of a path of this kind, as listed in error messages."""
    library: ClassVar[str] = ""
    """Optional module needed for reading; `import_library` imports it."""
    extra: ClassVar[str] = ""
    """Extra of cdejax that installs the library (`pip install '.[EXTRA]'`)."""

    @classmethod
    @abstractmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The source, unopened, or None if the path is of another kind."""

    @abstractmethod
    def read(self) -> Reading:
        """Opens the source.

        Raises:
          ValueError: it does not exist, cannot be read, or lacks a column.
        """

    def check(self) -> None:
        """Checks the source before a run does any work.

        By default it is only opened; kinds whose first rows are cheap to read also
        check those.

        Raises:
          ValueError: as `read`, or the first rows are invalid.
        """
        self.read()

    @abstractmethod
    def fingerprint(self) -> Any:
        """A JSON value that changes whenever the content does: a hash or versions.

        Artefacts made from the source are keyed on it.
        """

    @classmethod
    def hub_dataset(cls, path: str) -> str | None:
        """OWNER/DATASET on the Hugging Face Hub that a path names, for model cards."""
        return None

    def import_library(self) -> Any:
        """The optional library; a ValueError explains how to install it if missing."""
        try:
            return importlib.import_module(self.library)
        except ImportError as error:
            raise ValueError(
                f"source {self.config.path!r}: reading it needs {self.library} "
                f"({error}): pip install '.[{self.extra}]' in cdejax's checkout"
            ) from None


def fixed_layout(config: SourceConfig, reading: Reading) -> Reading:
    """A reading with its own columns: `columns` do not apply, but `domain` does.

    Raises:
      ValueError: the configuration sets `columns`.
    """
    if config.columns != ColumnsConfig():
        raise ValueError(
            f"source {config.path!r} has a fixed layout; leave out its `columns`."
        )
    if config.domain is not None:
        reading.columns = dataclasses.replace(reading.columns, domain=None)
    return reading


def name_and_split(path: str, prefix: str) -> tuple[str, str] | None:
    """NAME and SPLIT of PREFIX + NAME[:SPLIT] (default `train`); None if unmatched."""
    if not path.startswith(prefix):
        return None
    name, _, split = path.removeprefix(prefix).partition(":")
    return name, split or "train"
