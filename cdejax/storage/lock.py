"""Locks on folders, so that one process at a time writes into them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Locks a folder, which it makes if need be, until the context ends.

    The operating system releases the lock when the process ends, however it ends.

    Raises:
      ValueError: another process holds the lock, or the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = open(folder / ".lock", "a+")  # noqa: SIM115 (held until the end)
    except OSError as error:
        raise _no_writing(folder, error) from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            raise ValueError(
                f"{folder}: another run (process {owner}) is writing there. "
                "Wait for it to end or choose another `output` folder."
            ) from None
        stream.truncate(0)
        try:
            os.write(stream.fileno(), str(os.getpid()).encode())
        except OSError as error:
            raise _no_writing(folder, error) from None
        yield


def _no_writing(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"{folder}: cannot write there ({error.strerror}). Choose another `output` "
        "folder, free some space or change its permissions."
    )
