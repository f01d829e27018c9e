"""Fills the arrays of a device's chunks with texts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Int

from cdejax.data.ragged import Ragged
from cdejax.training.cache import Chunks
from cdejax.training.layout import Layout, Places, Shape
from cdejax.training.rows import PlacedTexts

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
    # `arrange` takes texts longest first; places go back to the order of the texts.
    order = np.argsort(-lengths, kind="stable")
    sorted_places = layout.arrange(lengths[order])
    inverse = np.argsort(order)
    places = sorted_places._replace(
        **{k: getattr(sorted_places, k)[inverse] for k in _PER_TEXT}
    )
    number = np.concatenate(numbers)
    side = np.repeat(np.arange(len(rows)), [len(chosen) for chosen in rows])
    chunks = []
    for group, (shape, count) in enumerate(
        zip(layout.shapes, places.counts, strict=True)
    ):
        mine = places.group == group
        texts = _place_texts(shape, mine, places, lengths, tokens, number, side)
        filled = layout.rows.fill(shape, texts)
        chunks.append(Chunks(filled, np.array([count], np.int32)))
    return tuple(chunks), layout.vector_indices(places).astype(np.int32)


def _place_texts(
    shape: Shape,
    mine: Bool[np.ndarray, "texts"],
    places: Places,
    lengths: Int[np.ndarray, "texts"],
    tokens: Int[np.ndarray, "tokens"],
    number: Int[np.ndarray, "texts"],
    side: Int[np.ndarray, "texts"],
) -> PlacedTexts:
    """Those of a device's texts that stand in rows of one shape."""
    # Rows of all chunks lie end to end, so one index says where a token stands: where
    # its text begins, and how many of the text's tokens come before it.
    first = places.row * shape.width + places.start
    within = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.repeat(mine, lengths)
    return PlacedTexts(
        tokens[chosen],
        (np.repeat(first, lengths) + within)[chosen],
        lengths[mine],
        places.slot[mine],
        (places.row * shape.slots + places.slot)[mine],
        number[mine],
        side[mine],
    )


def concatenate_devices(parts: list[tuple[Chunks, ...]]) -> tuple[Chunks, ...]:
    """Concatenates the chunks of several devices, group by group."""
    join = lambda *arrays: np.concatenate(arrays)  # noqa: E731
    return tuple(jax.tree.map(join, *group) for group in zip(*parts, strict=True))
