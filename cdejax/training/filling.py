"""Fills the arrays of a device's chunks with texts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Int

from cdejax.data.ragged import Ragged
from cdejax.training.cache import Chunks
from cdejax.training.layout import Layout, Places

_PER_TEXT = ("group", "row", "start", "slot")


def row_lengths(store: Ragged, rows: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Number of tokens of some of a store's texts."""
    return store.offsets[rows + 1] - store.offsets[rows]


def fill_chunks(
    layout: Layout,
    stores: Sequence[Ragged],
    rows: Sequence[Int[np.ndarray, "side"]],
    numbers: Sequence[Int[np.ndarray, "side"]],
) -> tuple[tuple[Chunks, ...], Int[np.ndarray, "texts"]]:
    """Fills chunks with the texts of one device.

    Args:
      layout: the shapes.
      stores: token ids of all texts, by side.
      rows: which of them the device has, by side.
      numbers: their indices in the global batch, by side.

    Returns:
      Chunks, one element per shape; and the index of each text's vector, side after
      side.
    """
    pairs = list(zip(stores, rows, strict=True))
    lengths = np.concatenate([row_lengths(*pair) for pair in pairs])
    tokens = np.concatenate([store.joined(chosen) for store, chosen in pairs])
    order = np.argsort(-lengths, kind="stable")
    sorted_places = layout.arrange(lengths[order])
    inverse = np.argsort(order)
    places = sorted_places._replace(
        **{k: getattr(sorted_places, k)[inverse] for k in _PER_TEXT}
    )
    number = np.concatenate(numbers)
    side = np.repeat(np.arange(len(rows)), [len(chosen) for chosen in rows])
    chunks = tuple(
        _fill(layout, group, places, lengths, tokens, (number, side))
        for group in range(len(layout.shapes))
    )
    return chunks, layout.vector_indices(places).astype(np.int32)


def _fill(
    layout: Layout,
    group: int,
    places: Places,
    lengths: Int[np.ndarray, "texts"],
    tokens: Int[np.ndarray, "tokens"],
    facts: tuple[Int[np.ndarray, "texts"], Int[np.ndarray, "texts"]],
) -> Chunks:
    """Fills the chunks of one shape; rows without a text have length 1."""
    shape, mine = layout.shapes[group], places.group == group
    first = places.row * shape.width + places.start
    within = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.repeat(mine, lengths)
    where = (np.repeat(first, lengths) + within)[chosen]
    all_rows = (shape.chunks, shape.rows)
    ids = np.zeros((*all_rows, shape.width), np.int32)
    ids.reshape(-1)[where] = tokens[chosen]
    slots = (*all_rows, shape.slots) if layout.packed else all_rows
    rows, sides = np.zeros((2, *slots), np.int32)
    at = (places.row * shape.slots + places.slot)[mine]
    for column, values in zip((rows, sides), facts, strict=True):
        column.reshape(-1)[at] = values[mine]
    count = np.array([places.counts[group]], np.int32)
    if layout.packed:
        segments = np.zeros_like(ids)
        segments.reshape(-1)[where] = np.repeat(places.slot + 1, lengths)[chosen]
        return Chunks(ids, None, segments, rows, sides, count)
    real = np.ones(all_rows, np.int32)
    real.reshape(-1)[at] = lengths[mine]
    return Chunks(ids, real, None, rows, sides, count)


def concatenate_devices(parts: list[tuple[Chunks, ...]]) -> tuple[Chunks, ...]:
    """Concatenates the chunks of several devices, group by group."""
    join = lambda *arrays: np.concatenate(arrays)  # noqa: E731
    return tuple(jax.tree.map(join, *group) for group in zip(*parts, strict=True))
