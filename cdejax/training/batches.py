"""The arrays of a training step: texts in chunks, relation ids, context.

What a step holds is a pure function of (plan, seed, step): it does not depend on the
number of hosts, devices or loader threads. How rows are laid out on devices does, but
neither loss nor gradients do (up to the order of sums).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from cdejax.runtime.progress import progress
from cdejax.training.cache import Chunks
from cdejax.training.filling import fill_chunks, row_lengths, side_by_side
from cdejax.training.layout import Layout, plan_packed, plan_padded
from cdejax.training.relation import DocumentColumns, QueryRows
from cdejax.typing import AnyArray

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.clustering.vectors import Vectors
    from cdejax.data.pairs import Pairs
    from cdejax.data.tokens import Tokens

_CONTEXT, _NEGATIVES = 1, 2
"""Purposes of random draws, so that they are independent."""
_TEXTS, _DOCUMENTS = slice(0, 2), slice(2, 3)
"""Sides of a step that are laid out together: queries and documents; the context."""


class Batch(NamedTuple):
    """One step. Every array's leading axis is split over devices, but for the last."""

    texts: tuple[Chunks, ...]
    """Queries, positives and hard negatives."""
    context: tuple[Chunks, ...]
    """Documents for the first stage (none for a biencoder)."""
    query_at: Int[AnyArray, "queries"]
    """Where each query's vector comes out of its device's chunks."""
    document_at: Int[AnyArray, "documents"]
    context_at: Int[AnyArray, "places"]
    query_rows: QueryRows
    """Relation ids of the queries."""
    document_columns: DocumentColumns
    """The same for the documents."""
    context_order: Int[AnyArray, "context"]
    """Where each context document stands among all devices' places; the same
    everywhere, so that random draws per context position do not depend on the device
    count."""


@dataclass(frozen=True)
class BatchSettings:
    """What decides the content and shape of a step."""

    seed: int
    devices: int
    """Devices of all processes."""
    chunk_tokens: int
    """Token positions encoded at once on a device."""
    context_size: int
    """Context documents a step (0: biencoder)."""
    soft_tokens: int
    """Positions between a context and a text (0: biencoder)."""
    negatives_per_query: int
    max_widths: int
    packed: bool
    """Whether texts share rows where they have no context of their own."""


class _Rows(NamedTuple):
    """Row numbers of one step, in the order of the plan."""

    query: Int[np.ndarray, "batch"]
    document: Int[np.ndarray, "columns"]
    owner: Int[np.ndarray, "columns"]
    real: np.ndarray
    context: Int[np.ndarray, "context"]


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


class BatchMaker:
    """Makes the batch of any step from the artefacts.

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
        if plan.batch_size % settings.devices:
            raise ValueError(
                f"plan.batch_size is {plan.batch_size}, which {settings.devices} "
                "devices cannot share equally; choose a multiple of it"
            )
        self.pairs, self.tokens, self.plan = pairs, tokens, plan
        self.settings, self.vectors = settings, vectors
        check_context_size(settings.context_size, plan.batch_size)
        self.context_size = settings.context_size
        self._known = pairs.known
        self.known_width = self._survey()
        self.layouts = self._plan()

    def step(self, step: int, local: Sequence[int] | None = None) -> Batch:
        """The batch of a step, for the given devices (default: all)."""
        rows = self._rows(step)
        devices = range(self.settings.devices) if local is None else local
        query, document, context = self._deals(rows)
        texts, at = self._texts(rows, query, document, devices)
        split = [len(query[d]) for d in devices]
        contexts, context_at = self._contexts(rows, context, devices)
        return Batch(
            texts,
            contexts,
            np.concatenate([x[:n] for x, n in zip(at, split, strict=True)]),
            np.concatenate([x[n:] for x, n in zip(at, split, strict=True)]),
            context_at,
            self._query_rows(rows, np.concatenate([query[d] for d in devices])),
            self._columns(rows, np.concatenate([document[d] for d in devices])),
            self._context_order(context),
        )

    def real_tokens(self, step: int) -> int:
        """Tokens of a step's texts."""
        return sum(int(lengths.sum()) for lengths in self._lengths(self._rows(step)))

    def padded_tokens(self, step: int) -> int:
        """Token positions that all devices compute for a step."""
        return sum(
            layout.positions(layout.arrange(lengths))
            for layout, sides in zip(self.layouts, (_TEXTS, _DOCUMENTS), strict=False)
            for lengths in self._by_device(step, sides)
        )

    def padding_efficiency(self, steps: int = 8) -> tuple[float, float]:
        """Real tokens over computed positions, and what would be possible at best.

        At best: with the same widths of rows, but no empty rows. Of some steps of the
        plan, spread over it.
        """
        chosen = range(0, self.plan.total_steps, self.plan.total_steps // steps or 1)
        real = sum(self.real_tokens(step) for step in chosen)
        computed = sum(self.padded_tokens(step) for step in chosen)
        best = sum(
            layout.best_positions(lengths)
            for step in chosen
            for layout, sides in zip(self.layouts, (_TEXTS, _DOCUMENTS), strict=False)
            for lengths in self._by_device(step, sides)
        )
        return real / max(computed, 1), real / max(best, 1)

    def _survey(self) -> int:
        """One pass over the plan: known positives of a query at most.

        Steps in which no query has several are passed over: mostly, all are.
        """
        table, known = self.pairs.train, 0
        several = self._known.has_several(self.pairs.query_content)
        with progress("look at known positives", self.plan.total_steps) as advance:
            for step in range(self.plan.total_steps):
                if several[table.query[self.plan.rows(step)]].any():
                    known = max(known, self._known_ids(self._rows(step)).shape[1])
                advance(1)
        return known

    def _plan(self) -> tuple[Layout, ...]:
        """The shapes of texts and, for a contextual encoder, of the context."""
        settings = self.settings
        front = self.context_size + settings.soft_tokens if self.context_size else 0
        texts = _Lengths(self, _TEXTS)
        tokens, widths = settings.chunk_tokens, settings.max_widths
        packed = settings.packed
        if front or not packed:
            plans = [plan_padded(texts, tokens, front=front, max_widths=widths)]
        else:
            plans = [plan_packed(texts, tokens)]
        if front:
            documents = _Lengths(self, _DOCUMENTS)
            plans.append(
                plan_packed(documents, tokens)
                if packed
                else plan_padded(documents, tokens, max_widths=widths)
            )
        return tuple(plans)

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
            # A copy: NumPy refuses to permute an empty row of a file.
            found = np.array(self.pairs.train.negatives[int(row)])
            drawn = rng.permutation(found)[:count]
            out[i, : len(drawn)], present[i, : len(drawn)] = drawn, True
        return out, present

    def _rng(self, step: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, step, purpose])

    def _lengths(self, rows: _Rows) -> list[Int[np.ndarray, "texts"]]:
        sides = [(self.tokens.queries, rows.query)]
        sides.append((self.tokens.documents, rows.document))
        if self.context_size:
            sides.append((self.tokens.context, rows.context))
        return [row_lengths(store, chosen) for store, chosen in sides]

    def _by_device(self, step: int, sides: slice) -> Int[np.ndarray, "devices texts"]:
        """Lengths of the texts of some sides on each device, longest first.

        Where a device has one context document fewer, the last one stands for it.
        """
        devices, parts = self.settings.devices, []
        for lengths in self._lengths(self._rows(step))[sides]:
            dealt = -np.sort(-lengths)
            dealt = np.pad(dealt, (0, -len(dealt) % devices), mode="edge")
            parts.append(dealt.reshape(-1, devices).T)
        return -np.sort(-np.concatenate(parts, axis=1), axis=1)

    def _deals(self, rows: _Rows) -> list[list[Int[np.ndarray, "local"]]]:
        """For each side, the texts of each device: longest first, dealt in turn.

        All devices get equally many: the last context document is dealt again if need
        be, and its further vectors are not used.
        """
        deals = []
        for lengths in self._lengths(rows):
            order = np.argsort(-lengths, kind="stable")
            order = np.pad(order, (0, -len(order) % self.settings.devices), mode="edge")
            devices = range(self.settings.devices)
            deals.append([order[d :: self.settings.devices] for d in devices])
        return deals if self.context_size else [*deals, []]

    def _texts(
        self,
        rows: _Rows,
        query: list[Int[np.ndarray, "local"]],
        document: list[Int[np.ndarray, "local"]],
        devices: Sequence[int],
    ) -> tuple[tuple[Chunks, ...], list[Int[np.ndarray, "local"]]]:
        """Chunks of queries and documents, and where each device's vectors come out."""
        filled = [
            fill_chunks(
                self.layouts[0],
                (self.tokens.queries, self.tokens.documents),
                (rows.query[query[d]], rows.document[document[d]]),
                (query[d], document[d]),
            )
            for d in devices
        ]
        return side_by_side([chunks for chunks, _ in filled]), [at for _, at in filled]

    def _contexts(
        self,
        rows: _Rows,
        deal: list[Int[np.ndarray, "local"]],
        devices: Sequence[int],
    ) -> tuple[tuple[Chunks, ...], Int[np.ndarray, "places"]]:
        """The same for the context's documents, with equally many places a device."""
        if not self.context_size:
            return (), np.zeros(len(devices), np.int32)
        filled = [
            fill_chunks(
                self.layouts[1],
                (self.tokens.context,),
                (rows.context[deal[d]],),
                (deal[d],),
            )
            for d in devices
        ]
        places = np.concatenate([at for _, at in filled])
        return side_by_side([chunks for chunks, _ in filled]), places

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
        """Of the rows' columns only those are asked for that are real."""
        content = self.pairs.document_content[rows.document]
        positive, negative = np.split(content, [len(rows.query)])
        return self._known.beyond_batch(
            self.pairs.query_content[rows.query],
            positive,
            negative[rows.real[len(rows.query) :]],
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


def filled(batch: Batch) -> float:
    """Share of the computed token positions that hold real tokens."""
    real = computed = 0
    for group in (*batch.texts, *batch.context):
        assert group.count is not None
        computed += int(np.sum(group.count)) * group.ids[0].size
        if group.segments is not None:
            real += int(np.count_nonzero(group.segments))
        elif group.lengths is not None:
            texts = np.any(group.ids, axis=-1)  # the other rows are padding
            real += int(np.sum(group.lengths, where=texts))
    return real / max(computed, 1)


class _Lengths(Sequence[np.ndarray]):
    """`BatchMaker._by_device` of every step, made when it is asked for."""

    def __init__(self, maker: BatchMaker, sides: slice):
        self._maker, self._sides = maker, sides

    def __len__(self) -> int:
        return self._maker.plan.total_steps

    def __getitem__(self, step: int) -> Int[np.ndarray, "devices texts"]:  # type: ignore[override]
        if step >= len(self):
            raise IndexError(step)
        return self._maker._by_device(step, self._sides)

    def __iter__(self) -> Iterator[Int[np.ndarray, "devices texts"]]:
        with progress("plan shapes", len(self)) as advance:
            for step in range(len(self)):
                yield self[step]
                advance(1)
