"""The texts of a step as PyTorch's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cdejax.data.ragged import Ragged


class Padded(NamedTuple):
    """Some texts side by side, right-padded to the longest of them."""

    ids: Tensor
    mask: Tensor
    rows: Tensor
    """Which texts they are."""


@dataclass(frozen=True)
class Texts:
    """Token ids of texts."""

    store: Ragged

    @property
    def lengths(self) -> Int[np.ndarray, "texts"]:
        return self.store.lengths

    def padded(self, rows: Int[np.ndarray, "n"], device: str) -> Padded:
        lengths = self.lengths[rows]
        ids = self.store.padded(rows, int(lengths.max())).astype(np.int64)
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        arrays = (ids, mask.astype(np.int64), np.asarray(rows, np.int64))
        return Padded(*(torch.from_numpy(array).to(device) for array in arrays))

    def chunks(self, size: int, device: str) -> list[Padded]:
        """All texts, longest first, so many at a time."""
        order = np.argsort(-self.lengths, kind="stable")
        starts = range(0, len(order), size)
        return [self.padded(order[i : i + size], device) for i in starts]


class Step(NamedTuple):
    """A step's texts; row i of the one side belongs to row i of the other."""

    queries: Texts
    documents: Texts


def read_steps(path: str | Path) -> list[Step]:
    """What `texts.save_steps` wrote."""
    with np.load(path) as arrays:
        count = sum(name.startswith("queries_lengths") for name in arrays.files)
        return [
            Step(*(_texts(arrays, side, i) for side in ("queries", "documents")))
            for i in range(count)
        ]


def _texts(arrays: np.lib.npyio.NpzFile, side: str, step: int) -> Texts:
    lengths = arrays[f"{side}_lengths{step}"]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Texts(Ragged(arrays[f"{side}{step}"], offsets))


def both(step: Step) -> Texts:
    """Queries, then documents."""
    stores = [step.queries.store, step.documents.store]
    values = np.concatenate([store.values for store in stores])
    lengths = np.concatenate([store.lengths for store in stores])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Texts(Ragged(values, offsets))
