"""Hashes of file contents; a process reads each file once."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

Signature = tuple[int, ...]
"""Device, inode, size, and times of the last change of content and metadata (ns)."""
SETTLED = 2.0
"""Seconds after which another change gets a different timestamp.

File systems store timestamps with a resolution of 2 s or better.
"""
_known: dict[Signature, str] = {}


def signature(path: str | Path) -> Signature | None:
    """A value that changes whenever a file or folder does; None if it is missing."""
    try:
        stat = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    times = stat.st_mtime_ns, stat.st_ctime_ns
    return stat.st_dev, stat.st_ino, stat.st_size, *times


def is_settled(seen: Signature | None) -> bool:
    """Whether a later change would change the signature."""
    return seen is None or time.time_ns() - seen[-1] > SETTLED * 1e9


def file_hash(path: str | Path) -> str:
    """Hash (16 hex digits) of a file's content.

    A file is not read again unless its signature has changed. So this detects edits,
    but not data that a disk lost.
    """
    seen = signature(path)
    if seen in _known:
        return _known[seen]
    stable = is_settled(seen)
    digest = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    if seen is not None and stable and signature(path) == seen:
        _known[seen] = digest.hexdigest()
    return digest.hexdigest()
