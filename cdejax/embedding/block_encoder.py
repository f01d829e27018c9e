"""Encodes texts block by block: tokenises ahead, batches by length, restores order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int

from cdejax.data.ragged import Ragged
from cdejax.embedding.program import Program
from cdejax.embedding.prompt_tokenizer import PromptTokenizer
from cdejax.embedding.widths import TextBatch, batch_by_length, padded_widths
from cdejax.runtime.platforms import platform
from cdejax.runtime.streaming import fetch_in_order, growing_spans, prefetch

_log = logging.getLogger(__name__)
BLOCK = 64
"""Number of full batches whose texts are sorted by length together."""
FINE, FINE_ON_CPU = 1 << 18, 1 << 12
"""Number of texts from which less padding is worth more compilations (see `widths`)."""
FEW_ON_CPU = 512
"""Fewer texts than this are encoded only in the smallest batches: a CPU computes
several of them as fast as a large one, but would compile each size of batch."""


@dataclass
class _Block:
    """Consecutive texts that are sorted by length together."""

    first: int
    """Row of its first text."""
    tokens: Ragged
    out: Float[np.ndarray, "block dim"]
    """Vectors of its texts, in their order."""
    missing: int
    """Number of vectors still to be computed."""


@dataclass(frozen=True)
class BlockEncoder:
    """Encodes texts with one stage of a model.

    While the devices compute, the host tokenises the next block and pads the next
    batches.
    """

    program: Program
    fixed: tuple[Any, ...]
    """Arguments of the program that are the same for every batch."""
    tokenizer: PromptTokenizer
    pad_id: int
    batch_size: int
    """Maximum number of texts per batch and device."""
    finish: Callable[
        [Float[np.ndarray, "rows hidden"], Int[np.ndarray, "rows"]],
        Float[np.ndarray, "rows dim"],
    ]
    """Turns the model's vectors, with the rows of their texts, into embeddings."""
    dim: int
    """Size of an embedding."""

    def blocks(
        self, texts: Sequence[str], rows: range, advance: Callable[[int], None]
    ) -> Iterator[Float[np.ndarray, "block dim"]]:
        """Embeddings of consecutive rows of texts, block by block.

        Args:
          texts: the texts, read when their block is tokenised.
          rows: which of them to encode.
          advance: called with the number of embeddings that have become ready.

        Raises:
          ValueError: what `finish` raises.
        """
        truncated = 0

        def tokenize(span: range) -> _Block:
            nonlocal truncated
            own = rows[span.start : span.stop]
            tokens, cut = self.tokenizer.tokenize([texts[i] for i in own])
            truncated += cut
            out = np.empty((len(tokens), self.dim), np.float32)
            return _Block(own.start, tokens, out, len(tokens))

        largest = BLOCK * self.batch_size * self.program.mesh.size
        tokenized = prefetch(tokenize, growing_spans(len(rows), largest))
        started = self._start(tokenized, len(rows))
        for (block, batch), vectors in fetch_in_order(started):
            vectors = vectors[: len(batch.rows)]
            block.out[batch.rows] = self.finish(vectors, batch.rows + block.first)
            advance(len(batch.rows))
            block.missing -= len(batch.rows)
            if not block.missing:
                yield block.out
        if truncated:
            limit = self.tokenizer.max_length
            _log.info("%d of %d texts cut at %d tokens", truncated, len(rows), limit)

    def _start(
        self, blocks: Iterable[_Block], count: int
    ) -> Iterator[tuple[tuple[_Block, TextBatch], Float[Array, "batch dim"]]]:
        """Pads batches and starts to encode them."""
        for block in blocks:
            plan = self._plan(block.tokens.lengths, count)
            self.program.compile(self.fixed, {(b.size, b.width) for b in plan})
            for batch in plan:
                arrays = self._pad(block.tokens, batch)
                yield (block, batch), self.program.start(self.fixed, *arrays)

    def _plan(self, lengths: Int[np.ndarray, "texts"], count: int) -> list[TextBatch]:
        """The batches of a block, given the number of texts of all blocks."""
        cpu = platform(self.program.mesh) == "cpu"
        devices = self.program.mesh.size
        fine = count >= (FINE_ON_CPU if cpu else FINE)
        # An accelerator computes padding sooner than it compiles another shape.
        least = max(8 // devices, 1) if cpu else self.batch_size
        most = min(least, self.batch_size) if count < FEW_ON_CPU else self.batch_size
        widest = padded_widths(self.tokenizer.max_length, fine)
        return batch_by_length(lengths, most, widest, least, devices)

    def _pad(
        self, tokens: Ragged, batch: TextBatch
    ) -> tuple[Int[np.ndarray, "batch length"], Int[np.ndarray, "batch"]]:
        """Token ids and lengths of a batch; rows without a text have length 1."""
        count = len(batch.rows)
        ids = np.full((batch.size, batch.width), self.pad_id, np.int32)
        ids[:count] = tokens.padded(batch.rows, batch.width, self.pad_id)
        lengths = np.ones(batch.size, np.int32)
        lengths[:count] = tokens.lengths[batch.rows]
        return ids, lengths


def check_finite(
    vectors: Float[np.ndarray, "rows dim"],
    rows: Int[np.ndarray, "rows"],
    model: str,
    dtype: str,
) -> None:
    """Refuses vectors that are not finite.

    Args:
      vectors: the vectors.
      rows: the rows of their texts, for the message.
      model: name of the model, for the message.
      dtype: dtype of its activations, for the message.

    Raises:
      ValueError: names the first text whose vector is not finite.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"texts[{rows[finite.argmin()]}]: {model} gives a vector that is not "
            f"finite (activations {dtype}); check its weights"
        )
