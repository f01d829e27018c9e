"""The context of a contextual encoder: first-stage vectors of texts from the corpus.

Store a context together with the index whose vectors were computed with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from cdejax.folders.paths import local_output
from cdejax.folders.reading import is_file, opened, read_json
from cdejax.storage import durable
from cdejax.storage.artifacts import fingerprint, write_json

Method = Literal["random", "kmeans++", "medoids"]
"""How the texts of a context are chosen (see `cdejax.embedding.choice`)."""
Fill = Literal["mask", "resample"]
"""How positions without a text are treated: masked, or filled by resampling texts."""
ARRAYS, INFO = "context.safetensors", "context.json"
"""Files of a saved context."""
_OLD_ARRAYS = "context.npz"
_NAMES = ("ids", "vectors", "mask")


@dataclass(frozen=True)
class Origin:
    """How the texts of a context were chosen, apart from the seed."""

    method: Method
    """Method that chose the texts."""
    candidates: int
    """Number of candidates sampled from the corpus."""
    fill: Fill
    """How positions without a text were treated."""
    corpus: int
    """Number of texts in the corpus."""
    size: int
    """Maximum number of context texts the model takes, C."""
    texts_hash: str
    """Hash of the chosen texts in order (see `hash_texts`)."""


@dataclass(frozen=True)
class Context:
    """First-stage vectors of chosen texts.

    A context without vectors is the null context: the second stage then uses its null
    vector at every position.
    """

    ids: Int[np.ndarray, "texts"]
    """Indices of the texts in the sequence they were chosen from."""
    vectors: Float[np.ndarray, "texts hidden"]
    """The first stage's output, not normalised."""
    mask: Bool[np.ndarray, "texts"]
    """Which vectors the second stage attends to."""
    seed: int
    """Seed with which the texts were chosen."""
    model: str
    """Hash of the weights that computed the vectors (`Embedder.hash`)."""
    origin: Origin | None = None
    """How the texts were chosen; None if not recorded."""
    settings: str | None = None
    """Hash of the other settings that determine the vectors (`Embedder.settings_hash`);
    None if not recorded."""

    def __len__(self) -> int:
        return int(self.mask.sum())

    @property
    def hash(self) -> str:
        """Hash (16 hex digits) of what the second stage reads."""
        digest = hashlib.blake2b(self.model.encode(), digest_size=8)
        for array in (self.ids, self.vectors, self.mask):
            digest.update(f"{array.shape}{array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @property
    def info(self) -> dict[str, Any]:
        """Everything except the arrays, as plain values: hash, number of texts, etc."""
        info = {"hash": self.hash, "texts": len(self), "seed": self.seed}
        origin = {} if self.origin is None else dataclasses.asdict(self.origin)
        settings = {} if self.settings is None else {"settings": self.settings}
        return info | {"model": self.model} | settings | origin

    def compact(self) -> Context:
        """Returns the same context without masked positions."""
        if self.mask.all():
            return self
        kept = {name: getattr(self, name)[self.mask] for name in _NAMES}
        return dataclasses.replace(self, **kept)

    def save(self, folder: str | Path) -> None:
        """Writes `context.safetensors` and `context.json`, both or neither.

        An existing context is kept until the new one is on disk; other files in the
        folder are not touched.
        """
        durable.write_together(local_output(folder), self.write, gone=[_OLD_ARRAYS])

    def write(self, folder: Path) -> None:
        """Writes the files of a context into an existing folder, not atomically."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _NAMES}
        (folder / ARRAYS).write_bytes(save(arrays))
        write_json(folder / INFO, self.info | {"fingerprint": fingerprint(self.info)})

    @classmethod
    def load(cls, folder: str | Path) -> Context:
        """Reads a saved context, including those of older versions (`context.npz`).

        Raises:
          ValueError: a file is missing, damaged or modified.
        """
        folder = Path(folder)
        durable.recover(folder)
        old = is_file(folder / _OLD_ARRAYS) and not is_file(folder / ARRAYS)
        names = (_OLD_ARRAYS if old else ARRAYS, INFO)
        for name in names:
            if not is_file(folder / name):
                raise ValueError(
                    f"{folder}: no context there ({name} is missing); write one with "
                    "`cdejax context` or `Embedder.context(texts).save(folder)`"
                )
        try:
            info = read_json(folder / INFO)
            arrays = _read_arrays(folder / names[0])
            context = cls(
                *(arrays[name] for name in _NAMES),
                seed=info["seed"],
                model=info["model"],
                origin=_origin(info),
                settings=info.get("settings"),
            )
            stored = info.pop("fingerprint", None), info["hash"]
        except Exception as error:  # zip, safetensors, JSON and key errors alike
            raise ValueError(f"{folder}: cannot read the context: {error!r}") from None
        if stored[1] != context.hash or stored[0] not in (None, fingerprint(info)):
            raise ValueError(
                f"{folder}: {names[0]} and {INFO} do not belong together, or one was "
                "changed; make the context again"
            )
        return context


def sample(count: int, size: int, seed: int) -> Int[np.ndarray, "texts"]:
    """Samples up to `size` of `count` indices without replacement, in ascending order.

    If there are at most `size`, all are returned.
    """
    if count <= size:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False))


def hash_texts(texts: Iterable[str]) -> str:
    """Hash (16 hex digits) of a sequence of texts; their order matters."""
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        content = text.encode()
        digest.update(f"{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if path.name == _OLD_ARRAYS:
        with np.load(opened(path), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in _NAMES}
    from safetensors.numpy import load_file

    return load_file(opened(path))


def _origin(info: dict[str, Any]) -> Origin | None:
    """The recorded origin; contexts of older versions have none."""
    if "method" not in info:
        return None
    return Origin(**{f.name: info[f.name] for f in dataclasses.fields(Origin)})
