"""Which texts of a step each device encodes: sorted by length, then in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from cdejax.runtime.progress import progress
from cdejax.training.filling import row_lengths
from cdejax.training.step_rows import StepRows, StepSampler

if TYPE_CHECKING:
    from cdejax.data.tokens import Tokens

TEXTS, CONTEXT = slice(0, 2), slice(2, 3)
"""Sides of a step that share a layout: queries and documents; context documents."""
Shards = list[Int[np.ndarray, "local"]]
"""For each device, the indices of its texts among those of one side of a step."""


class TextSharding:
    """Shards the texts of each side of a step over devices.

    The longest texts come first and go to the devices in turn, so that all devices have
    about equal work.

    Args:
      tokens: token ids of all texts.
      sampler: which texts form which step.
    """

    def __init__(self, tokens: Tokens, sampler: StepSampler):
        self.tokens, self.sampler = tokens, sampler
        self.devices = sampler.settings.devices
        self.context_size = sampler.settings.context_size

    def lengths(self, rows: StepRows) -> list[Int[np.ndarray, "texts"]]:
        """Numbers of tokens of queries, documents and, if there are any, context."""
        sides = [(self.tokens.queries, rows.query)]
        sides.append((self.tokens.documents, rows.document))
        if self.context_size:
            sides.append((self.tokens.context, rows.context))
        return [row_lengths(store, chosen) for store, chosen in sides]

    def shard(self, rows: StepRows) -> list[Shards]:
        """The shards of queries, documents and context (empty for a biencoder).

        All devices have equally many texts: if need be, the shortest context document
        is repeated, and the vectors of its copies are not used.
        """
        sides = []
        for lengths in self.lengths(rows):
            order = np.argsort(-lengths, kind="stable")
            order = np.pad(order, (0, -len(order) % self.devices), mode="edge")
            sides.append([order[d :: self.devices] for d in range(self.devices)])
        return sides if self.context_size else [*sides, []]

    def device_lengths(
        self, step: int, sides: slice
    ) -> Int[np.ndarray, "devices texts"]:
        """Lengths of the texts that `shard` gives each device, longest first.

        Args:
          step: the step.
          sides: `TEXTS` or `CONTEXT`.
        """
        parts = []
        for lengths in self.lengths(self.sampler.rows(step))[sides]:
            ordered = -np.sort(-lengths)
            ordered = np.pad(ordered, (0, -len(ordered) % self.devices), mode="edge")
            parts.append(ordered.reshape(-1, self.devices).T)
        return -np.sort(-np.concatenate(parts, axis=1), axis=1)

    def gathered_order(self, shards: Shards) -> Int[np.ndarray, "context"]:
        """Index of each context document when the shards are gathered end to end."""
        order = np.zeros(self.context_size, np.int32)
        per_device = -(-self.context_size // self.devices)
        for device, texts in enumerate(shards):
            order[texts] = device * per_device + np.arange(len(texts))
        return order


class StepLengths(Sequence[np.ndarray]):
    """`TextSharding.device_lengths` of all steps, each computed on access."""

    def __init__(self, texts: TextSharding, sides: slice):
        self._texts, self._sides = texts, sides

    def __len__(self) -> int:
        return self._texts.sampler.plan.total_steps

    def __getitem__(self, step: int) -> Int[np.ndarray, "devices texts"]:  # type: ignore[override]
        if step >= len(self):
            raise IndexError(step)
        return self._texts.device_lengths(step, self._sides)

    def __iter__(self) -> Iterator[Int[np.ndarray, "devices texts"]]:
        with progress("plan shapes", len(self)) as advance:
            for step in range(len(self)):
                yield self[step]
                advance(1)
