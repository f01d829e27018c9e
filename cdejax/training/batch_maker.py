"""Makes the batch of any step from the artefacts.

The content of a step is a pure function of (plan, seed, step): it does not depend on
the number of hosts, devices or loader threads. How texts are laid out on devices does,
but loss and gradients do not (up to the order of sums).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from cdejax.data.ragged import Ragged
from cdejax.training.batch import Batch, BatchSettings
from cdejax.training.cache import Chunks
from cdejax.training.filling import concatenate_devices, fill_chunks
from cdejax.training.layout import Layout
from cdejax.training.relation_ids import RelationIds
from cdejax.training.step_rows import StepSampler
from cdejax.training.text_sharding import CONTEXT, TEXTS, Shards, TextSharding

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.clustering.vectors import Vectors
    from cdejax.data.pairs import Pairs
    from cdejax.data.tokens import Tokens
    from cdejax.training.shapes import BatchShapes

Side = tuple[Ragged, Int[np.ndarray, "texts"], Shards]
"""Token ids of all texts; which of them a step has; and how these are sharded."""


class BatchMaker:
    """Makes the batch of any step from the artefacts.

    Args:
      pairs: the training pairs.
      tokens: token ids of their texts.
      plan: which pairs form which step.
      settings: what else decides content and shapes.
      shapes: the static shapes of all its steps (see `shapes.find_shapes`).
      vectors: surrogate vectors for the false-negative mask (None: no mask).

    Raises:
      ValueError: the batch size is not a multiple of the number of devices, or smaller
        than the context.
    """

    def __init__(
        self,
        pairs: Pairs,
        tokens: Tokens,
        plan: Plan,
        settings: BatchSettings,
        shapes: BatchShapes,
        vectors: Vectors | None = None,
    ):
        settings.check(plan.batch_size)
        self.pairs, self.tokens, self.plan = pairs, tokens, plan
        self.settings, self.vectors = settings, vectors
        self.context_size = settings.context_size
        self.sampler = StepSampler(pairs.train, plan, settings)
        self.sharding = TextSharding(tokens, self.sampler)
        self.relation = RelationIds(pairs, vectors, shapes.known_width)
        self.layouts = shapes.layouts
        """Shapes of texts and, for a contextual encoder, of the context."""

    def step(self, step: int, local: Sequence[int] | None = None) -> Batch:
        """The batch of a step, for the given devices (default: all)."""
        rows, tokens = self.sampler.rows(step), self.tokens
        devices = range(self.settings.devices) if local is None else local
        query, document, context = self.sharding.shard(rows)
        texts, at = self._chunks(
            0,
            devices,
            (tokens.queries, rows.query, query),
            (tokens.documents, rows.document, document),
        )
        split = [len(query[d]) for d in devices]
        contexts, context_at = (), [np.zeros(len(devices), np.int32)]
        if self.context_size:
            side = tokens.context, rows.context, context
            contexts, context_at = self._chunks(1, devices, side)
        local_queries = np.concatenate([query[d] for d in devices])
        local_documents = np.concatenate([document[d] for d in devices])
        return Batch(
            texts,
            contexts,
            np.concatenate([x[:n] for x, n in zip(at, split, strict=True)]),
            np.concatenate([x[n:] for x, n in zip(at, split, strict=True)]),
            np.concatenate(context_at),
            self.relation.query_rows(rows, local_queries),
            self.relation.document_columns(rows, local_documents),
            self.sharding.gathered_order(context),
        )

    def _chunks(
        self, layout: int, devices: Sequence[int], *sides: Side
    ) -> tuple[tuple[Chunks, ...], list[Int[np.ndarray, "local"]]]:
        """Chunks of the devices, and per device the indices of its texts' vectors."""
        filled = [
            fill_chunks(
                self.layouts[layout],
                [store for store, _, _ in sides],
                [rows[shards[d]] for _, rows, shards in sides],
                [shards[d] for _, _, shards in sides],
            )
            for d in devices
        ]
        chunks = concatenate_devices([chunks for chunks, _ in filled])
        return chunks, [at for _, at in filled]

    def real_tokens(self, step: int) -> int:
        """Number of tokens of a step's texts."""
        lengths = self.sharding.lengths(self.sampler.rows(step))
        return sum(int(each.sum()) for each in lengths)

    def padded_tokens(self, step: int) -> int:
        """Number of token positions that all devices compute for a step."""
        return sum(
            layout.positions(layout.arrange(lengths))
            for layout, lengths in self._device_lengths(step)
        )

    def padding_efficiency(self, steps: int = 8) -> tuple[float, float]:
        """Real tokens over computed positions, and the best possible ratio.

        The best is that with the same row widths, but no empty rows.

        Args:
          steps: how many steps of the plan to sample, evenly.
        """
        chosen = range(0, self.plan.total_steps, self.plan.total_steps // steps or 1)
        real = sum(self.real_tokens(step) for step in chosen)
        computed = sum(self.padded_tokens(step) for step in chosen)
        best = sum(
            layout.best_positions(lengths)
            for step in chosen
            for layout, lengths in self._device_lengths(step)
        )
        return real / max(computed, 1), real / max(best, 1)

    def _device_lengths(
        self, step: int
    ) -> Iterator[tuple[Layout, Int[np.ndarray, "texts"]]]:
        """Each layout with the text lengths of each device."""
        for layout, sides in zip(self.layouts, (TEXTS, CONTEXT), strict=False):
            for lengths in self.sharding.device_lengths(step, sides):
                yield layout, lengths
