"""What a campaign found, one JSON line a trial, accumulating over invocations."""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def options(what: str, count: int) -> argparse.Namespace:
    """Command-line options that all campaigns share."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--count", type=int, default=count, help="trials to run now")
    parser.add_argument("--seed", type=int, help="seed (default: drawn and printed)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/campaigns"),
        help="where trials and the records of all invocations are kept",
    )
    given = parser.parse_args()
    if given.seed is None:
        given.seed = random.SystemRandom().randrange(2**31)
    sys.stdout.write(f"seed {given.seed}\n")
    return given


class Records:
    """A file of trials and their verdicts."""

    def __init__(self, file: Path):
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)

    def add(self, verdict: str, **trial: Any) -> None:
        """Writes down one trial and prints it."""
        line = json.dumps({"verdict": verdict, **trial})
        with open(self.file, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")
        sys.stdout.write(line[:400] + "\n")
        sys.stdout.flush()

    def all(self) -> list[dict[str, Any]]:
        """Every trial so far."""
        if not self.file.is_file():
            return []
        with open(self.file, encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    def conclude(self, good: Iterable[str]) -> int:
        """Prints the totals of all invocations; the exit code: 0 if all were good."""
        counts = collections.Counter(trial["verdict"] for trial in self.all())
        bad = sum(counts.values()) - sum(counts[verdict] for verdict in good)
        sys.stdout.write(f"{self.file}: {dict(counts)}; {bad} not as they should be\n")
        return int(bad > 0)
