"""What depends on a model folder: the content of every file that reading it opens.

The files are found by reading the folder as `cdejax.load` does, but for the values of
the weights. So a file counts as soon as some code opens it, and no list of names can
miss one.
"""

from __future__ import annotations

from pathlib import Path

from cdejax.data.tokenizer import Tokenizer
from cdejax.folders.reading import files_read
from cdejax.models import from_pretrained
from cdejax.models.pretrained.settings import read_settings


def model_files(folder: Path) -> dict[str, str]:
    """Hash of each file that decides a folder's model, by its name in the folder.

    Raises:
      ValueError: the model cannot be read (see `from_pretrained`).
    """
    return files_read(_read_model, folder)


def folder_files(folder: Path) -> dict[str, str]:
    """Those of model and tokenizer, and of the settings: prompts and length limits.

    Raises:
      ValueError: a part cannot be read.
    """
    settings = files_read(read_settings, folder)
    return settings | files_read(Tokenizer.load, folder) | model_files(folder)


def _read_model(folder: Path) -> None:
    from_pretrained(folder, weights=False)
