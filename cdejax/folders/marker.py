"""The marker file of our exports, and the check of their files against it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from cdejax.storage import digests
from cdejax.storage.artifacts import read_json

_log = logging.getLogger(__name__)
MARKER = "cdejax.json"
"""Marks a folder as an export of ours, with its kind and its card's metadata."""


def read_marker(folder: str | Path) -> dict[str, Any]:
    """The marker of an export; an empty one for any other folder."""
    path = Path(folder) / MARKER
    held = read_json(path) if path.is_file() else None
    return held if isinstance(held, dict) else {}


def warn_of_changes(folder: str | Path) -> None:
    """Warns of the files of an export that have changed since.

    They may have been edited on purpose, so they are used anyway. Folders that are not
    exports of ours are not checked.
    """
    try:
        table = read_marker(folder).get("digests")
    except ValueError as error:  # no part of the model
        _log.warning("%s", error)
        return
    if table is None:  # an older version's
        return
    try:
        table = digests.check_table(table, f"{Path(folder) / MARKER}: digests")
    except ValueError as error:
        _log.warning("%s; it was changed, and no file is compared with it", error)
        return
    if found := ", ".join(digests.changed(folder, table)):
        _log.warning(
            "%s: not as it was exported (%s); where nobody edited it, export it anew",
            *(folder, found),
        )
