"""Arrays of rows of texts, padded or packed, and how a model encodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from cdejax.typing import AnyArray

if TYPE_CHECKING:
    from cdejax.models import BiEncoder
    from cdejax.training.layout import Shape


class PlacedTexts(NamedTuple):
    """The texts of one device in one group of rows, and their places in it."""

    tokens: Int[np.ndarray, "tokens"]
    """Token ids of all texts, concatenated."""
    position: Int[np.ndarray, "tokens"]
    """Index of each token among the positions of all rows."""
    lengths: Int[np.ndarray, "texts"]
    """Number of tokens of each text."""
    slot: Int[np.ndarray, "texts"]
    """Index of each text within its row."""
    vector: Int[np.ndarray, "texts"]
    """Index of each text's vector among those of all rows."""
    number: Int[np.ndarray, "texts"]
    """Index of each text in the global batch."""
    side: Int[np.ndarray, "texts"]
    """0 for a query, 1 for a document."""


class PaddedRows(NamedTuple):
    """Rows of one text each, right-padded to a common width."""

    ids: Int[AnyArray, "*chunks rows width"]
    """Token ids."""
    lengths: Int[AnyArray, "*chunks rows"]
    """Lengths of the texts (1 for rows without a text)."""
    numbers: Int[AnyArray, "*chunks rows"]
    """Index of each text in the global batch, from which random keys are derived."""
    sides: Int[AnyArray, "*chunks rows"]
    """0 for a query, 1 for a document."""

    @classmethod
    def fill(cls, shape: Shape, texts: PlacedTexts) -> PaddedRows:
        """Puts texts into the chunks of a shape."""
        rows = (shape.chunks, shape.rows)
        return cls(
            _scatter((*rows, shape.width), texts.position, texts.tokens),
            _scatter(rows, texts.vector, texts.lengths, empty=1),
            _scatter(rows, texts.vector, texts.number),
            _scatter(rows, texts.vector, texts.side),
        )

    def encode(self, model: BiEncoder) -> Float[Array, "rows dim"]:
        """The vector of each row of a chunk."""
        return model(self.ids, lengths=self.lengths)

    def real_tokens(self) -> int:
        """Number of tokens of the texts."""
        texts = np.any(self.ids, axis=-1)  # the other rows are padding
        return int(np.sum(self.lengths, where=texts))


class PackedRows(NamedTuple):
    """Rows that hold several texts each, one after the other."""

    ids: Int[AnyArray, "*chunks rows width"]
    """Token ids."""
    segments: Int[AnyArray, "*chunks rows width"]
    """For each token, the number of its text within the row, from 1; 0 for padding."""
    numbers: Int[AnyArray, "*chunks rows slots"]
    """Index of each text in the global batch; each row has as many slots as it can hold
    texts."""
    sides: Int[AnyArray, "*chunks rows slots"]
    """0 for a query, 1 for a document."""

    @classmethod
    def fill(cls, shape: Shape, texts: PlacedTexts) -> PackedRows:
        """Puts texts into the chunks of a shape."""
        rows = (shape.chunks, shape.rows)
        slots, positions = (*rows, shape.slots), (*rows, shape.width)
        segments = np.repeat(texts.slot + 1, texts.lengths)
        return cls(
            _scatter(positions, texts.position, texts.tokens),
            _scatter(positions, texts.position, segments),
            _scatter(slots, texts.vector, texts.number),
            _scatter(slots, texts.vector, texts.side),
        )

    def encode(self, model: BiEncoder) -> Float[Array, "rows slots dim"]:
        """The vector of each slot of a chunk."""
        return model.packed(self.ids, self.segments, self.numbers.shape[-1])

    def real_tokens(self) -> int:
        """Number of tokens of the texts."""
        return int(np.count_nonzero(self.segments))


Rows = PaddedRows | PackedRows
RowsType = type[PaddedRows] | type[PackedRows]


def _scatter(
    shape: tuple[int, ...],
    index: Int[np.ndarray, "n"],
    values: Int[np.ndarray, "n"],
    empty: int = 0,
) -> Int[np.ndarray, "..."]:
    """An int32 array with the values at flat indices and `empty` elsewhere."""
    out = np.full(shape, empty, np.int32)
    out.reshape(-1)[index] = values
    return out
