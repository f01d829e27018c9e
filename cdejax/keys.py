"""What depends on a model folder: the content of every file that reading it opens.

The files are found by reading the folder as `cdejax.load` does, but for the values of
the weights. So a file counts as soon as some code opens it, and no list of names can
miss one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdejax.data.tokenizer import Tokenizer
from cdejax.folder import read_settings
from cdejax.reading import Record, recorded

_known: dict[tuple[Callable[[Path], Any], Path], Record] = {}


def model_files(folder: Path) -> dict[str, str]:
    """Hash of each file that decides a folder's model, by its name in the folder.

    Raises:
      ValueError: the model cannot be read (see `from_pretrained`).
    """
    return _files(_read_model, folder)


def tokenizer_files(folder: Path) -> dict[str, str]:
    """Hash of each file that decides a folder's tokenizer, by its name in the folder.

    Raises:
      ValueError: the tokenizer cannot be read.
    """
    return _files(Tokenizer.load, folder)


def folder_files(folder: Path) -> dict[str, str]:
    """Those of model and tokenizer, and of the settings: prompts and length limits.

    Raises:
      ValueError: a part cannot be read.
    """
    settings = _files(read_settings, folder)
    return settings | tokenizer_files(folder) | model_files(folder)


def _read_model(folder: Path) -> None:
    from cdejax.models import from_pretrained

    from_pretrained(folder, weights=False)


def _files(read: Callable[[Path], Any], folder: Path) -> dict[str, str]:
    """Hashes of what `read` opens; it runs again only if something has changed."""
    record = _known.get((read, folder))
    if record is None or not record.is_current():
        with recorded() as record:
            read(folder)
        _known[read, folder] = record
    return record.hashes(folder)
