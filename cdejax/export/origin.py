"""Which code made an export."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def code_origin() -> str:
    """The package's version, with the git commit where it runs from a checkout."""
    version = f"cdejax {metadata.version('cdejax')}"
    # an environment inside another project's repository is no checkout of ours
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return version
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return version
    changed = " with uncommitted changes" if _git("status", "--porcelain", ".") else ""
    return f"{version}, commit {commit}{changed}"


def _git(*arguments: str) -> str | None:
    """What git prints in the package's folder; None if it fails or is not there."""
    command = ["git", "-C", str(_PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
