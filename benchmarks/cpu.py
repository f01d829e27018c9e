"""MiniLM on a CPU, ours and PyTorch's in turn: attention, encoding, gradients.

    python benchmarks/cpu.py [--rows 32] [--length 256] [--repeats 5]

Each case is run by one side, then by the other, again and again, so that both meet the
same neighbours on a shared machine. The peer has a process of its own, whose threads
sleep meanwhile. Seconds are medians and least of the repeats, by the clock and of the
processor; the processor's disturb less. JSON goes to benchmarks/results.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import tyro
from checks import check_least, check_peer
from cpu_cases import OURS, PEERS, Sizes
from reporting import RESULTS, environment, file_of, save

Seconds = dict[str, list[float]]
"""By the clock (`wall`) and of the processor (`cpu`), of each repeat."""


@dataclass(frozen=True)
class Options:
    """What is measured."""

    rows: int = 32
    """Texts of a case."""
    length: int = 256
    """Tokens of each text."""
    repeats: int = 5


def measured(case: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds by the clock and of the processor, and what the case gave."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = case()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def serve(pipe: Connection, sizes: Sizes) -> None:
    """Runs the peer's cases as they are named, until none is."""
    cases = {name: make(sizes) for name, make in PEERS.items()}
    while (name := pipe.recv()) is not None:
        pipe.send(measured(cases[name]))


def compare(sizes: Sizes, repeats: int) -> dict[str, dict[str, Seconds]]:
    """Seconds of both sides by case, whose results are to be the same."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    peer = context.Process(target=serve, args=(there, sizes), daemon=True)
    peer.start()
    ours = {name: make(sizes) for name, make in OURS.items()}

    def both(name: str) -> list[tuple[float, float, Any]]:
        mine = measured(ours[name])
        here.send(name)
        return [mine, here.recv()]

    for name in ours:  # compiles, and checks
        (*_, mine), (*_, theirs) = both(name)
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-5, err_msg=name)
    seconds: dict[str, dict[str, Seconds]] = {
        name: {side: {"wall": [], "cpu": []} for side in ("ours", "peer")}
        for name in ours
    }
    for _ in range(repeats):
        for name, sides in seconds.items():
            for side, (wall, cpu, _) in zip(sides.values(), both(name), strict=True):
                side["wall"].append(wall)
                side["cpu"].append(cpu)
    here.send(None)
    return seconds


def show(name: str, sides: dict[str, Seconds], rows: int) -> None:
    """One case: texts a second, and how many times the peer's rate that is."""
    for clock in ("wall", "cpu"):
        ours, peer = (np.array(side[clock]) for side in sides.values())
        print(
            f"{name:20} {clock:5} ours {rows / np.median(ours):8.2f}/s, peer "
            f"{rows / np.median(peer):8.2f}/s, ratio of medians "
            f"{np.median(peer) / np.median(ours):.2f}, of the least "
            f"{peer.min() / ours.min():.2f}",
            flush=True,
        )


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    check_least(options, 1, "rows", "length", "repeats")
    modules = {"torch": "torch", "sentence_transformers": "sentence-transformers"}
    check_peer("sentence-transformers", **modules)
    facts = environment("sentence-transformers", "transformers", "torch")
    seconds = compare(Sizes(options.rows, options.length), options.repeats)
    for name, sides in seconds.items():
        show(name, sides, options.rows)
    path = file_of(RESULTS, "minilm", facts["date"])
    save(path, {"options": asdict(options), **facts, "seconds": seconds}, sys.argv)


if __name__ == "__main__":
    main()
