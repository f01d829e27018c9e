"""The arrays of a training step: texts in chunks, relation ids, context.

What a step holds is a pure function of (plan, seed, step): it does not depend on the
number of hosts, devices or loader threads. How rows are laid out on devices does, but
neither loss nor gradients do (up to the order of sums).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cdejax.data.ragged import Ragged
from cdejax.progress import progress
from cdejax.training.cache import Chunks
from cdejax.training.known import KnownPositives
from cdejax.training.layout import Layout, LayoutPlan, chunk_widths, plan_layouts
from cdejax.training.relation import DocumentColumns, QueryRows
from cdejax.typing import AnyArray

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.clustering.vectors import Vectors
    from cdejax.data.pairs import Pairs
    from cdejax.data.tokens import Tokens

_CONTEXT, _NEGATIVES = 1, 2
"""Purposes of random draws, so that they are independent."""


class Batch(NamedTuple):
    """One step. Every array's leading axis is split over devices, but for the last."""

    query: tuple[Chunks, ...]
    """Queries, longest first."""
    document: tuple[Chunks, ...]
    """Positives and hard negatives, longest first."""
    context: tuple[Chunks, ...]
    """Documents for the first stage (none for a biencoder)."""
    query_rows: QueryRows
    """Relation ids, in the order of the queries on each device."""
    document_columns: DocumentColumns
    """The same for the documents."""
    context_order: Int[AnyArray, "context"]
    """Where each context document stands among all devices' rows; the same everywhere,
    so that random draws per context position do not depend on the device count."""


@dataclass(frozen=True)
class BatchSettings:
    """What decides the content and shape of a step."""

    seed: int
    devices: int
    """Devices of all processes."""
    chunk_size: int
    context_chunk_size: int
    context_size: int
    """Context documents a step (0: biencoder)."""
    negatives_per_query: int
    max_layouts: int
    max_widths: int


class _Rows(NamedTuple):
    """Row numbers of one step, in the order of the plan."""

    query: Int[np.ndarray, "batch"]
    document: Int[np.ndarray, "columns"]
    owner: Int[np.ndarray, "columns"]
    real: np.ndarray
    context: Int[np.ndarray, "context"]


class BatchMaker:
    """Makes the batch of any step from the artefacts.

    Raises:
      ValueError: the batch size is not a multiple of the number of devices.
    """

    def __init__(
        self,
        pairs: Pairs,
        tokens: Tokens,
        plan: Plan,
        settings: BatchSettings,
        vectors: Vectors | None = None,
    ):
        if plan.batch_size % settings.devices:
            raise ValueError(
                f"plan.batch_size is {plan.batch_size}, which {settings.devices} "
                "devices cannot share equally; choose a multiple of it"
            )
        self.pairs, self.tokens, self.plan = pairs, tokens, plan
        self.settings, self.vectors = settings, vectors
        self.context_size = min(settings.context_size, plan.batch_size)
        self._chunk_sizes = self._fit_chunks()
        self._known = KnownPositives.from_pairs(pairs)
        self.known_width, self.layouts = self._survey()

    def step(self, step: int, local: Sequence[int] | None = None) -> Batch:
        """The batch of a step, for the given devices (default: all)."""
        rows = self._rows(step)
        devices = range(self.settings.devices) if local is None else local
        layout = self.layouts.find(self._needed(rows))
        query, document, context = self._deals(rows)
        count = len(layout.widths)
        return Batch(
            self._chunks(self.tokens.queries, rows.query, query, layout, 0, devices),
            self._chunks(
                self.tokens.documents, rows.document, document, layout, 1, devices
            ),
            self._chunks(self.tokens.context, rows.context, context, layout, 2, devices)
            if count > 2
            else (),
            self._query_rows(rows, np.concatenate([query[d] for d in devices])),
            self._columns(rows, np.concatenate([document[d] for d in devices])),
            self._context_order(context),
        )

    def real_tokens(self, step: int) -> int:
        """Tokens of a step's texts."""
        return sum(int(lengths.sum()) for lengths in self._lengths(self._rows(step)))

    def padded_tokens(self, step: int) -> int:
        """Token positions that all devices compute for a step."""
        layout = self.layouts.find(self._needed(self._rows(step)))
        return self.layouts.cost(layout) * self.settings.devices

    def _survey(self) -> tuple[int, LayoutPlan]:
        """One pass over the plan: lengths and known positives decide the shapes."""
        needed, tokens, known = [], 0, 0
        with progress("plan shapes", self.plan.total_steps) as advance:
            for step in range(self.plan.total_steps):
                rows = self._rows(step)
                needed.append(self._needed(rows))
                tokens += sum(int(lengths.sum()) for lengths in self._lengths(rows))
                known = max(known, self._known_ids(rows).shape[1])
                advance(1)
        plan = plan_layouts(
            needed,
            tokens,
            chunks=self._chunk_sizes,
            devices=self.settings.devices,
            max_layouts=self.settings.max_layouts,
            max_widths=self.settings.max_widths,
        )
        return known, plan

    def _fit_chunks(self) -> tuple[int, ...]:
        """Chunk size of each side, no larger than what a device holds of it."""
        settings = self.settings
        batch = self.plan.batch_size
        sides = [(settings.chunk_size, batch)]
        sides.append((settings.chunk_size, batch * (1 + settings.negatives_per_query)))
        if self.context_size:
            sides.append((settings.context_chunk_size, self.context_size))
        return tuple(min(chunk, -(-n // settings.devices)) for chunk, n in sides)

    def _rows(self, step: int) -> _Rows:
        """The step's rows: queries, positives followed by negatives, context."""
        table, settings = self.pairs.train, self.settings
        picked = self.plan.rows(step)
        query, positive = table.query[picked], table.document[picked]
        owner, document = np.arange(len(picked)), positive
        real = np.ones(len(picked), bool)
        if settings.negatives_per_query:
            rng = self._rng(step, _NEGATIVES)
            negative, present = self._negatives(picked, rng)
            owner = np.concatenate([owner, np.repeat(owner, negative.shape[1])])
            document = np.concatenate([document, negative.ravel()])
            real = np.concatenate([real, present.ravel()])
        rng = self._rng(step, _CONTEXT)
        context = rng.permutation(document[real])[: self.context_size]
        return _Rows(query, document, owner, real, context)

    def _negatives(
        self, picked: Int[np.ndarray, "batch"], rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "batch negatives"], np.ndarray]:
        """Up to the asked number of negatives a row; what is missing is not real."""
        count = self.settings.negatives_per_query
        out = np.repeat(self.pairs.train.document[picked][:, None], count, 1)
        present = np.zeros(out.shape, bool)
        for i, row in enumerate(picked):
            drawn = rng.permutation(self.pairs.train.negatives[int(row)])[:count]
            out[i, : len(drawn)], present[i, : len(drawn)] = drawn, True
        return out, present

    def _rng(self, step: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, step, purpose])

    def _lengths(self, rows: _Rows) -> list[Int[np.ndarray, "texts"]]:
        sides = [(self.tokens.queries, rows.query)]
        sides.append((self.tokens.documents, rows.document))
        if self.context_size:
            sides.append((self.tokens.context, rows.context))
        return [_row_lengths(store, chosen) for store, chosen in sides]

    def _needed(self, rows: _Rows) -> Layout:
        sides = zip(self._lengths(rows), self._chunk_sizes, strict=True)
        devices = self.settings.devices
        return Layout(tuple(chunk_widths(n, chunk, devices) for n, chunk in sides))

    def _deals(self, rows: _Rows) -> list[list[Int[np.ndarray, "local"]]]:
        """For each side, the texts of each device: longest first, dealt in turn."""
        deals = []
        for lengths in self._lengths(rows):
            order = np.argsort(-lengths, kind="stable")
            devices = range(self.settings.devices)
            deals.append([order[d :: self.settings.devices] for d in devices])
        return deals if self.context_size else [*deals, []]

    def _chunks(
        self,
        store: Ragged,
        rows: Int[np.ndarray, "texts"],
        deal: list[Int[np.ndarray, "local"]],
        layout: Layout,
        side: int,
        devices: Sequence[int],
    ) -> tuple[Chunks, ...]:
        """Chunks of one side, those of one width together, devices end to end."""
        chunk, widths = self.layouts.chunks[side], layout.widths[side]
        groups, start = [], 0
        for width in dict.fromkeys(widths):
            count = widths.count(width)
            cut = slice(start * chunk, (start + count) * chunk)
            parts = [
                _fill(store, rows, deal[d][cut], count, chunk, width) for d in devices
            ]
            groups.append(
                Chunks(*(np.concatenate(x) for x in zip(*parts, strict=True)))
            )
            start += count
        return tuple(groups)

    def _query_rows(self, rows: _Rows, chosen: Int[np.ndarray, "n"]) -> QueryRows:
        content = self.pairs.document_content
        positive = rows.document[: len(rows.query)]
        known = self._known_ids(rows)
        padded = np.full((len(rows.query), self.known_width), -1, np.int32)
        padded[:, : known.shape[1]] = known
        return QueryRows(
            chosen.astype(np.int32),
            self.pairs.query_content[rows.query[chosen]].astype(np.int32),
            content[positive[chosen]].astype(np.int32),
            padded[chosen],
            self._teacher("queries", rows.query[chosen]),
            self._teacher("documents", positive[chosen]),
        )

    def _columns(self, rows: _Rows, chosen: Int[np.ndarray, "n"]) -> DocumentColumns:
        owner, document = rows.owner[chosen], rows.document[chosen]
        return DocumentColumns(
            owner.astype(np.int32),
            self.pairs.query_content[rows.query[owner]].astype(np.int32),
            self.pairs.document_content[document].astype(np.int32),
            chosen < len(rows.query),
            rows.real[chosen],
            self._teacher("documents", document),
        )

    def _known_ids(self, rows: _Rows) -> Int[np.ndarray, "batch known"]:
        content = self.pairs.document_content[rows.document]
        count = len(rows.query)
        return self._known.beyond_batch(
            self.pairs.query_content[rows.query], content[:count], content[count:]
        )

    def _teacher(
        self, side: str, rows: Int[np.ndarray, "n"]
    ) -> Float[np.ndarray, "n dim"]:
        if self.vectors is None:
            return np.zeros((len(rows), 0), np.float32)
        return np.asarray(getattr(self.vectors, side)[rows], np.float32)

    def _context_order(
        self, deal: list[Int[np.ndarray, "local"]]
    ) -> Int[np.ndarray, "context"]:
        """Position of each context document when all devices' rows are gathered."""
        order = np.zeros(self.context_size, np.int32)
        width = -(-self.context_size // self.settings.devices)
        for device, texts in enumerate(deal):
            order[texts] = device * width + np.arange(len(texts))
        return order


def _row_lengths(store: Ragged, rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    return store.offsets[rows + 1] - store.offsets[rows]


def _fill(
    store: Ragged,
    rows: Int[np.ndarray, "texts"],
    chosen: Int[np.ndarray, "local"],
    count: int,
    chunk: int,
    width: int,
) -> Chunks:
    """Chunks of the chosen texts; missing rows are one padding token long."""
    ids = np.zeros((count * chunk, width), np.int32)
    lengths = np.ones(count * chunk, np.int32)
    numbers = np.zeros(count * chunk, np.int32)
    ids[: len(chosen)] = store.padded(rows[chosen], width)
    lengths[: len(chosen)] = _row_lengths(store, rows[chosen])
    numbers[: len(chosen)] = chosen
    shape = (count, chunk)
    return Chunks(
        ids.reshape(*shape, width), lengths.reshape(shape), numbers.reshape(shape)
    )
