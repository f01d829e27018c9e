"""What every kind of source provides."""

from __future__ import annotations

import dataclasses
import importlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from cdejax.config import ColumnsConfig, SourceConfig
from cdejax.data.rows import Reading


@dataclasses.dataclass(frozen=True)
class Source(ABC):
    """A configured source of pairs; its subclasses are the kinds there are."""

    config: SourceConfig

    forms: ClassVar[tuple[str, ...]]
    """How a path of this kind is written, as error messages list it."""
    library: ClassVar[str] = ""
    """Module of an optional dependency that reading takes, imported by `_import`."""
    extra: ClassVar[str] = ""
    """The extra of cdejax that installs the library."""

    @classmethod
    @abstractmethod
    def of(cls, config: SourceConfig) -> Self | None:
        """The source if its path is of this kind, else None; nothing is opened."""

    @abstractmethod
    def read(self) -> Reading:
        """Opens the source.

        Raises:
          ValueError: it is not there, cannot be read, or lacks a column.
        """

    def check(self) -> None:
        """Fails early, before any work, where `read` or the first rows would fail.

        Raises:
          ValueError: as `read`, or of the first rows.
        """
        self.read()

    @abstractmethod
    def fingerprint(self) -> Any:
        """JSON value that changes with the content: a hash, or versions."""

    @classmethod
    def hub_dataset(cls, path: str) -> str | None:
        """Name on the Hugging Face hub of the dataset at a path, for the model card."""
        return None

    def _import(self) -> Any:
        """The optional library, or a ValueError that says how to install it."""
        try:
            return importlib.import_module(self.library)
        except ImportError as error:
            raise ValueError(
                f"source {self.config.path!r}: reading it needs {self.library} "
                f"({error}): pip install '.[{self.extra}]' in cdejax's checkout"
            ) from None


def fixed_layout(config: SourceConfig, reading: Reading) -> Reading:
    """A reading with columns of its own: `columns` do not apply, `domain` does.

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
    """Parts of PREFIX + NAME[:SPLIT] (default split `train`); None for other paths."""
    if not path.startswith(prefix):
        return None
    name, _, split = path.removeprefix(prefix).partition(":")
    return name, split or "train"
