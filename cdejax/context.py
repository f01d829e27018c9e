"""The context of a contextual encoder: a sample of the corpus, as its first stage sees
it. One object, to be kept with the index that was made with it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from cdejax.artifacts import write_json

_ARRAYS, _INFO = "context.npz", "context.json"


@dataclass(frozen=True)
class Context:
    """First-stage vectors of sampled texts.

    With no vectors at all it is the null context: the second stage then reads its
    null vector in every place.
    """

    ids: Int[np.ndarray, "texts"]
    """Positions of the sampled texts in the sequence they were drawn from."""
    vectors: Float[np.ndarray, "texts hidden"]
    """The first stage's output, not normalised."""
    mask: Bool[np.ndarray, "texts"]
    """Which vectors the second stage reads."""
    seed: int
    """Seed of the sample."""
    model: str
    """Hash of the weights that made the vectors (`Embedder.hash`)."""

    def __len__(self) -> int:
        return int(self.mask.sum())

    @property
    def hash(self) -> str:
        """Hash (16 hex digits) of what the second stage gets to see."""
        digest = hashlib.blake2b(self.model.encode(), digest_size=8)
        for array in (self.ids, self.vectors, self.mask):
            digest.update(f"{array.shape}{array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> None:
        """Writes `context.npz` and `context.json`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / _ARRAYS, ids=self.ids, vectors=self.vectors, mask=self.mask)
        info = {"seed": self.seed, "model": self.model, "hash": self.hash}
        write_json(folder / _INFO, {**info, "texts": len(self)})

    @classmethod
    def load(cls, folder: str | Path) -> Context:
        """Reads a saved context; ValueError if files are missing or were changed."""
        folder = Path(folder)
        for name in (_ARRAYS, _INFO):
            if not (folder / name).is_file():
                raise ValueError(
                    f"{folder}: no context there ({name} is missing); write one with "
                    "`Embedder.context(texts).save(folder)`"
                )
        try:
            info = json.loads((folder / _INFO).read_text(encoding="utf-8"))
            with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
                context = cls(
                    *(arrays[name] for name in ("ids", "vectors", "mask")),
                    seed=info["seed"],
                    model=info["model"],
                )
        except Exception as error:  # zip, JSON and key errors alike
            raise ValueError(f"{folder}: cannot read the context: {error!r}") from None
        if context.hash != info["hash"]:
            raise ValueError(
                f"{folder}: {_ARRAYS} and {_INFO} do not belong together; make the "
                "context again"
            )
        return context


def sample(count: int, size: int, seed: int) -> Int[np.ndarray, "texts"]:
    """`size` of `count` positions without replacement, ascending; all if fewer."""
    if count <= size:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False))
