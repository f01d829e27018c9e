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
from cdejax.training.layout import Layout, plan_packed, plan_padded
from cdejax.training.relation_ids import RelationIds
from cdejax.training.step_rows import StepSampler
from cdejax.training.text_sharding import (
    CONTEXT,
    TEXTS,
    Shards,
    StepLengths,
    TextSharding,
)

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.clustering.vectors import Vectors
    from cdejax.data.pairs import Pairs
    from cdejax.data.tokens import Tokens

Side = tuple[Ragged, Int[np.ndarray, "texts"], Shards]
"""Token ids of all texts; which of them a step has; and how these are sharded."""


class BatchMaker:
    """Makes the batch of any step from the artefacts.

    Args:
      pairs: the training pairs.
      tokens: token ids of their texts.
      plan: which pairs form which step.
      settings: what else decides content and shapes.
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
        vectors: Vectors | None = None,
    ):
        _check_divisible(plan.batch_size, settings.devices)
        check_context_size(settings.context_size, plan.batch_size)
        self.pairs, self.tokens, self.plan = pairs, tokens, plan
        self.settings, self.vectors = settings, vectors
        self.context_size = settings.context_size
        self.sampler = StepSampler(pairs.train, plan, settings)
        self.sharding = TextSharding(tokens, self.sampler)
        self.relation = RelationIds(pairs, vectors, self.sampler)
        self.layouts = plan_layouts(self.sharding, settings)
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


def check_context_size(context: int, batch: int) -> None:
    """Refuses a context that a step's own documents cannot fill.

    Raises:
      ValueError: the model would be trained with another size than it is used with.
    """
    if context > batch:
        raise ValueError(
            f"model.context_size is {context}, but a step draws its context from the "
            f"documents of its own batch, which plan.batch_size makes {batch}; lower "
            f"model.context_size to {batch} or raise plan.batch_size to {context}"
        )


def _check_divisible(batch_size: int, devices: int) -> None:
    if batch_size % devices:
        raise ValueError(
            f"plan.batch_size is {batch_size}, which {devices} devices cannot share "
            "equally; choose a multiple of it"
        )


def plan_layouts(sharding: TextSharding, settings: BatchSettings) -> tuple[Layout, ...]:
    """Plans the shapes of texts and, for a contextual encoder, of the context.

    Texts that are encoded with a context have a row each, all others may be packed.
    """
    tokens, widths = settings.chunk_tokens, settings.max_widths

    def without_context(sides: slice) -> Layout:
        lengths = StepLengths(sharding, sides)
        if settings.packed:
            return plan_packed(lengths, tokens)
        return plan_padded(lengths, tokens, max_widths=widths)

    if not settings.context_size:
        return (without_context(TEXTS),)
    texts = StepLengths(sharding, TEXTS)
    front = settings.context_size + settings.soft_tokens
    padded = plan_padded(texts, tokens, front=front, max_widths=widths)
    return padded, without_context(CONTEXT)
