"""Surrogate vectors: a unit vector for every query and document of a pairs artefact.

They determine clusters, batches and the false-negative mask. They come from TF-IDF with
a truncated SVD (no model needed), from an encoder, or from the user's `.npy` files.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cdejax.clustering.files import check_file, check_vectors
from cdejax.clustering.tfidf import fit_tfidf
from cdejax.config import Config, VectorsConfig
from cdejax.data.pairs import Pairs
from cdejax.folders.paths import resolve_folder
from cdejax.runtime.processes import (
    barrier,
    from_main,
    in_lockstep,
    is_main,
    process,
    processes,
)
from cdejax.runtime.progress import progress
from cdejax.runtime.streaming import consume_in_background
from cdejax.storage import artifacts
from cdejax.storage.guarded import open_npy

_DONE = ".done"
_PATIENCE = 7 * 24 * 3600
"""Seconds that a process waits for the others' shares while they are alive."""
SIDES = ("queries", "documents")
Vectorise = Callable[[range], Iterator[Float[np.ndarray, "block dim"]]]
"""The vectors of consecutive rows, block by block."""


@dataclass(frozen=True)
class Vectors:
    """Unit vectors aligned with the query and document rows of a pairs artefact."""

    queries: Float[np.ndarray, "queries dim"]
    documents: Float[np.ndarray, "documents dim"]

    @classmethod
    def open(cls, folder: str | Path) -> Vectors:
        """Memory-maps a finished vectors artefact; ValueError if it is not one."""
        artifacts.read_manifest(folder)
        files = (Path(folder) / f"{side}.npy" for side in SIDES)
        return cls(*map(artifacts.load_array, files))


def vectors_stage(config: Config, root: str | Path, pairs_folder: str | Path) -> Path:
    """Writes the surrogate vectors of a pairs artefact, or reuses existing ones.

    If several processes call this together, each encodes its share of the texts when
    the vectors come from an encoder. Process 0, which calls this first, does all else.

    Returns the folder with `queries.npy` and `documents.npy` (float32, unit rows). An
    encoder's vectors are written in blocks: a run that was killed resumes.

    Raises:
      ValueError: an invalid setting, or a file that does not fit (see `check_file`).
    """

    settings = config.vectors
    spec = {
        "pairs": artifacts.artifact_fingerprint(pairs_folder),
        "vectors": _said(settings),
        "seed": config.seed,
        "inputs": _input_hashes(settings),
    }
    encoder = settings.method == "encoder"
    shared = encoder and in_lockstep()
    begun = False

    def build(folder: Path) -> dict[str, Any]:
        nonlocal begun
        begun = True
        pairs = Pairs.open(pairs_folder)
        if shared:
            _embed_together(settings, pairs_folder, folder)
            counts = _dim(folder)
        else:
            counts = _BUILDERS[settings.method](config, pairs, spec["pairs"], folder)
        for marker in folder.glob(f"*{_DONE}"):
            marker.unlink()
        return counts

    if shared and not is_main():
        _embed_together(settings, pairs_folder)
    folder = artifacts.run_stage(root, "vectors", spec, build, resumable=encoder)
    if shared and is_main() and not begun:
        _embed_together(settings, pairs_folder)
    return folder


def unit_rows(x: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
    """The rows as float32 scaled to norm 1; rows of zeros stay zero."""
    x = np.asarray(x, np.float32)
    norms = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return (x / np.where(norms == 0, 1, norms)).astype(np.float32)


@dataclass(frozen=True)
class Share:
    """The rows that one of several processes writes."""

    index: int = 0
    count: int = 1

    def rows(self, total: int) -> range:
        """Consecutive rows of this process; all processes together cover `total`."""
        start, stop = (total * (self.index + i) // self.count for i in (0, 1))
        return range(start, stop)

    def marker(self, path: Path) -> Path:
        """File beside `path` that records how many of the rows are written."""
        return path.with_suffix(f".{self.index}-{self.count}{_DONE}")


def write_blocks(
    path: Path,
    total: int,
    vectorise: Vectorise,
    label: str,
    *,
    share: Share = Share(),
    zeros_allowed: bool = False,
) -> Int[np.ndarray, "zeros"]:
    """Writes unit vectors to a `.npy` of `total` rows, or a process's share of them.

    Blocks are written while the next ones are computed. Once a block is on disk, the
    number of finished rows is stored beside the file, so a killed run resumes after its
    last complete block if the number of processes is unchanged. The caller removes
    these markers when all files are complete.

    Returns:
      The zero rows among those that this run wrote.

    Raises:
      ValueError: a vector is not finite, or zero where that is not allowed.
    """
    marker, own = share.marker(path), share.rows(total)
    done = _rows_done(marker, len(own))
    zeros = [np.zeros(0, np.int64)]

    def write(x: Float[np.ndarray, "block dim"]) -> None:
        nonlocal done
        start = own.start + done
        x = unit_rows(x if zeros_allowed else check_vectors(x, label, start))
        _create_once(path, (total, x.shape[1]), share.index)
        out = open_npy(path, "r+")
        out[start : start + len(x)] = x
        with open(path, "r+b") as stream:
            os.fsync(stream.fileno())  # like `out.flush()`, but other threads run
        zeros.append(start + np.flatnonzero(~x.any(axis=1)))
        done += len(x)
        artifacts.write_json(marker, done)
        advance(len(x))

    with progress(label, len(own), done) as advance:
        consume_in_background(write, vectorise(own[done:]))
    return np.concatenate(zeros)


def _rows_done(marker: Path, rows: int) -> int:
    """Number of finished rows that a killed run stored beside its file, or 0."""
    done = artifacts.read_json(marker) if marker.is_file() else 0
    if type(done) is not int or not 0 <= done <= rows:
        raise ValueError(
            f"{marker}: {done!r:.60} is no number of finished rows (there are {rows}); "
            "remove the folder that it belongs to and run the stage again"
        )
    return done


def _from_tfidf(config: Config, pairs: Pairs, _: str, folder: Path) -> dict[str, Any]:
    train = pairs.train
    model = fit_tfidf(
        pairs.queries,
        pairs.documents,
        np.stack([train.query, train.document], 1),
        config.vectors.dim,
        config.seed,
    )
    counts = dict(model.counts)
    empty = {}
    for side, texts in zip(SIDES, (pairs.queries, pairs.documents), strict=True):

        def vectorise(rows: range, texts: Sequence[str] = texts) -> Iterator[Any]:
            for start in range(rows.start, rows.stop, 8192):
                stop = min(start + 8192, rows.stop)
                yield model([texts[i] for i in range(start, stop)])

        empty[side] = write_blocks(
            folder / f"{side}.npy",
            len(texts),
            vectorise,
            f"tf-idf {side}",
            zeros_allowed=True,
        )
    links = [(p.query, p.document) for p in (pairs.train, pairs.heldout)]
    query, document = (np.concatenate(column) for column in zip(*links, strict=True))
    maps: list[Any] = [open_npy(folder / f"{side}.npy", "r+") for side in SIDES]
    q, d = maps
    lent = q[empty["queries"]], d[empty["documents"]]
    counts["queries_without_known_word"] = len(lent[0])
    counts["documents_without_known_word"] = len(lent[1])
    q_fill = borrow(empty["queries"], query, document, d)
    d_fill = borrow(empty["documents"], document, query, q)
    q[empty["queries"]], d[empty["documents"]] = q_fill, d_fill
    q.flush()
    d.flush()
    return counts


def borrow(
    rows: Int[np.ndarray, "zeros"],
    own: Int[np.ndarray, "pairs"],
    other: Int[np.ndarray, "pairs"],
    vectors: Float[np.ndarray, "others dim"],
) -> Float[np.ndarray, "zeros dim"]:
    """Vectors for rows that have none: the direction of their partners' sum.

    A text without known words carries no information, so it takes its partner's
    direction. Its own pair then scores 1, and nothing is masked because of it. If the
    partners have no vector either, it gets the first axis.

    Args:
      rows: rows without a vector.
      own: row of every pair on this side.
      other: row of every pair on the other side.
      vectors: unit vectors of the other side (zeros for rows without a vector).
    """
    out = np.zeros((len(rows), vectors.shape[1]), np.float32)
    place = np.full(int(own.max(initial=-1)) + 2, -1)
    place[rows[rows < len(place)]] = np.flatnonzero(rows < len(place))
    touched = place[own] >= 0
    np.add.at(out, place[own[touched]], vectors[other[touched]])
    out[~out.any(axis=1), 0] = 1
    return unit_rows(out)


def _from_encoder(config: Config, pairs: Pairs, _: str, folder: Path) -> dict[str, Any]:
    embed_share(config.vectors, pairs, folder, Share())
    return _dim(folder)


def _dim(folder: Path) -> dict[str, Any]:
    return {"dim": open_npy(folder / "queries.npy").shape[1]}


def _embed_together(
    settings: VectorsConfig, pairs_folder: str | Path, folder: Path | None = None
) -> None:
    """Encodes this process's share and waits for the others.

    Process 0 passes the folder; without one the artefact exists and nothing is done.
    """

    place = from_main("embed", lambda: None if folder is None else str(folder))
    if place is not None:
        share = Share(process(), processes())
        embed_share(settings, Pairs.open(pairs_folder), Path(place), share)
        barrier("embed", _PATIENCE)


def embed_share(
    settings: VectorsConfig, pairs: Pairs, folder: Path, share: Share
) -> None:
    """Writes one process's share of an encoder's vectors into the shared files.

    The files are complete once every process has returned from this function.

    Raises:
      ValueError: the encoder cannot be read or is contextual, or as `write_blocks`.
    """
    from cdejax.data.prompts import surrogate_prompts
    from cdejax.embedding.load import load

    embedder = load(resolve_folder(settings.encoder or "", "vectors.encoder"))
    _, embedder.prompts = surrogate_prompts(settings)
    if embedder.context_size is not None:
        raise ValueError(
            f"vectors.encoder: {settings.encoder} is contextual; give a plain biencoder"
        )
    for side, kind, texts in (
        ("queries", "query", pairs.queries),
        ("documents", "document", pairs.documents),
    ):
        vectorise = functools.partial(
            embedder.encode_blocks, texts, kind, None, settings.batch_size, None
        )
        path, label = folder / f"{side}.npy", f"embed {side}"
        write_blocks(path, len(texts), vectorise, label, share=share)


def _from_files(
    config: Config, pairs: Pairs, fingerprint: str, folder: Path
) -> dict[str, Any]:
    paths = config.vectors.queries, config.vectors.documents
    sizes = len(pairs.queries), len(pairs.documents)
    arrays = [
        check_file(path or "", rows, side, fingerprint)
        for path, rows, side in zip(paths, sizes, SIDES, strict=True)
    ]
    dims = [array.shape[1] for array in arrays]
    if dims[0] != dims[1]:
        raise ValueError(
            f"vectors: queries have {dims[0]} dimensions, documents {dims[1]}; "
            "both sides must come from one space."
        )
    for array, path, side in zip(arrays, paths, SIDES, strict=True):
        out = _create(folder / f"{side}.npy", *array.shape)
        for start in range(0, len(array), 65536):
            block = array[start : start + 65536]
            check_vectors(block, f"vectors.{side}: {path}", start)
            out[start : start + len(block)] = unit_rows(block)
        out.flush()
    return {"dim": dims[0]}


def _create(path: Path, rows: int, dim: int) -> np.memmap:
    """Creates a preallocated `.npy`: a full disk is an error, not a crash later."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
    with open(path, "r+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return out


def _create_once(path: Path, shape: tuple[int, int], index: int) -> None:
    """Creates a `.npy` unless another process already has; the first one is kept."""
    if path.exists():
        return
    new = path.with_suffix(f".{index}.new")
    _create(new, *shape)
    with contextlib.suppress(FileExistsError):
        os.link(new, path)
    new.unlink()


def _said(settings: VectorsConfig) -> dict[str, Any]:
    """The settings without unset prefixes, which the model's folder then determines."""
    said = artifacts.jsonable(settings)
    unset = {"query_prefix", "document_prefix"}
    return {k: v for k, v in said.items() if v is not None or k not in unset}


def _input_hashes(settings: VectorsConfig) -> dict[str, Any]:
    """Hashes of the files that the vectors depend on."""
    if settings.method == "tfidf":
        return {}
    if settings.method == "encoder":
        from cdejax.embedding.keys import folder_files

        folder = resolve_folder(settings.encoder or "", "vectors.encoder")
        return {"encoder": folder_files(folder)}
    hashes = {}
    for side in SIDES:
        path = Path(getattr(settings, side))
        if not path.is_file():
            raise ValueError(f"vectors.{side}: {path}: no such file.")
        hashes[side] = artifacts.hash_files(path)
    return hashes


_BUILDERS = {"tfidf": _from_tfidf, "encoder": _from_encoder, "file": _from_files}
