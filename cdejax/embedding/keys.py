"""Hashes of the files that a model folder's vectors depend on.

The files are found by reading the folder as `cdejax.load` does, without the values of
the weights. So every file that any code opens counts; there is no list of names to keep
up to date.
"""

from __future__ import annotations

from pathlib import Path

from cdejax.data.tokenizer import Tokenizer
from cdejax.folders.reading import files_read
from cdejax.models import from_pretrained
from cdejax.models.pretrained.settings import read_settings


def model_files(folder: Path) -> dict[str, str]:
    """Hashes of the files that decide a folder's model, by name in the folder.

    Raises:
      ValueError: the model cannot be read (see `from_pretrained`).
    """
    return files_read(_read_model, folder)


def folder_files(folder: Path) -> dict[str, str]:
    """Hashes of the files that decide model, tokenizer, prompts and length limits.

    Raises:
      ValueError: a part cannot be read.
    """
    settings = files_read(read_settings, folder)
    return settings | files_read(Tokenizer.load, folder) | model_files(folder)


def _read_model(folder: Path) -> None:
    from_pretrained(folder, weights=False)
