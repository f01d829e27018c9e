"""The marker file of an export of ours, and what it tells when the folder is read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from cdejax.storage import digests
from cdejax.storage.artifacts import read_json

_log = logging.getLogger(__name__)
MARKER = "cdejax.json"
"""Says that a folder is an export of ours, of what, and what its card was told."""


def read_marker(folder: str | Path) -> dict[str, Any]:
    """The marker of an export; an empty one for any other folder."""
    path = Path(folder) / MARKER
    held = read_json(path) if path.is_file() else None
    return held if isinstance(held, dict) else {}


def warn_of_changes(folder: str | Path) -> None:
    """Names the files of an export that are not what was exported.

    Somebody may have edited them on purpose, so they are used all the same. A folder
    that is no export of ours says nothing of its files.
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
