"""The first and the second call that encodes a few texts on a CPU, each side afresh.

    python benchmarks/first_call.py [--count 400] [--length 256] [--repeats 3]

Every measurement has a process of its own, so that the first call compiles. Our sides
are batches of one size, which fewer than `FEW_ON_CPU` texts get, and of several sizes,
which more texts get; the third is sentence-transformers. JSON goes to
benchmarks/results.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tyro
from checks import check_least, check_peer
from cpu_cases import FOLDER, Sizes, sentence_transformer
from reporting import RESULTS, environment, file_of, save

SIDES = ("one size", "several sizes", "sentence-transformers")


@dataclass(frozen=True)
class Options:
    """What is measured."""

    count: int = 400
    """Texts of 8 words to `length` tokens."""
    length: int = 256
    repeats: int = 3


def make_texts(options: Options) -> list[str]:
    """Texts of many lengths."""
    rng = np.random.default_rng(0)
    words = ["the", "of", "and", "to", "in", "for", "on", "with", "as", "by", "at"]
    lengths = rng.integers(8, options.length - 1, options.count)
    return [" ".join(rng.choice(words, length)) for length in lengths]


def encoder(side: str, length: int) -> Callable[[list[str]], Any]:
    """A loaded model that has encoded nothing."""
    if side == SIDES[2]:
        model = sentence_transformer(Sizes(1, length))
        return lambda texts: model.encode(texts, show_progress_bar=False)
    from cdejax.embedding import block_encoder
    from cdejax.embedding.load import load

    if side == SIDES[1]:
        block_encoder.FEW_ON_CPU = 0
    embedder = load(FOLDER)
    embedder.max_length = length
    return embedder.encode


def measure(side: str, options: Options) -> tuple[list[float], Any]:
    """Seconds of two calls, and the vectors."""
    texts, encode, spent = make_texts(options), encoder(side, options.length), []
    vectors = None
    for _ in range(2):
        start = time.perf_counter()
        vectors = np.asarray(encode(texts))
        spent.append(time.perf_counter() - start)
    return spent, vectors


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    check_least(options, 1, "count", "repeats")
    check_least(options, 16, "length")
    modules = {"torch": "torch", "sentence_transformers": "sentence-transformers"}
    check_peer("sentence-transformers", **modules)
    seconds: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    context, vectors = multiprocessing.get_context("spawn"), {}
    for _ in range(options.repeats):
        for side in SIDES:
            with context.Pool(1) as pool:
                spent, vectors[side] = pool.apply(measure, (side, options))
            seconds[side].append(spent)
    for side in SIDES:
        first, second = np.median(seconds[side], axis=0)
        print(
            f"{side:22} first call {first:6.2f} s, second {second:6.2f} s", flush=True
        )
        np.testing.assert_allclose(vectors[side], vectors[SIDES[0]], atol=2e-5)
    facts = environment("sentence-transformers", "transformers", "torch")
    path = file_of(RESULTS, "first_call", facts["date"])
    save(path, {"options": asdict(options), **facts, "seconds": seconds}, sys.argv)


if __name__ == "__main__":
    main()
