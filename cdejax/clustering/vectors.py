"""Surrogate vectors: a unit vector for every query and document of a pairs artefact.

They decide clusters, batches and the false-negative mask. They come from TF-IDF and a
truncated SVD (no model needed), from an encoder, or from the user's own `.npy` files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from cdejax import artifacts
from cdejax.clustering.files import check_file, check_vectors
from cdejax.config import Config, VectorsConfig
from cdejax.paths import resolve_folder
from cdejax.progress import progress

if TYPE_CHECKING:
    from cdejax.data.pairs import Pairs

_DONE = ".done"
SIDES = ("queries", "documents")
Vectorise = Callable[[Sequence[str]], Float[np.ndarray, "texts dim"]]


@dataclass(frozen=True)
class Vectors:
    """Unit vectors aligned with the query and document rows of a pairs artefact."""

    queries: Float[np.ndarray, "queries dim"]
    documents: Float[np.ndarray, "documents dim"]

    @classmethod
    def open(cls, folder: str | Path) -> Vectors:
        """Maps a finished vectors artefact; ValueError if it is not one."""
        artifacts.read_manifest(folder)
        files = (Path(folder) / f"{side}.npy" for side in SIDES)
        return cls(*map(artifacts.load_array, files))


def vectors_stage(config: Config, root: str | Path, pairs_folder: str | Path) -> Path:
    """Writes the surrogate vectors of a pairs artefact, or finds them written.

    Returns the folder with `queries.npy` and `documents.npy` (float32, unit rows). An
    encoder's vectors are written in blocks: killed and started again, it goes on.

    Raises:
      ValueError: an impossible setting, or a file that does not fit (see
        `check_file`).
    """
    from cdejax.data.pairs import Pairs

    settings = config.vectors
    spec = {
        "pairs": artifacts.artifact_fingerprint(pairs_folder),
        "vectors": settings,
        "seed": config.seed,
        "inputs": _input_hashes(settings),
    }
    code = tuple(f"clustering/{m}.py" for m in ("vectors", "tfidf", "files"))
    if settings.method == "encoder":
        code += ("embedder.py", "models")

    def build(folder: Path) -> dict[str, Any]:
        pairs = Pairs.open(pairs_folder)
        counts = _BUILDERS[settings.method](config, pairs, spec["pairs"], folder)
        for marker in folder.glob(f"*{_DONE}"):
            marker.unlink()
        return counts

    resumable = settings.method == "encoder"
    return artifacts.run_stage(
        root, "vectors", spec, build, code=code, resumable=resumable
    )


def unit_rows(x: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
    """The rows as float32 of length 1; rows of zeros stay."""
    x = np.asarray(x, np.float32)
    norms = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return (x / np.where(norms == 0, 1, norms)).astype(np.float32)


def write_blocks(
    path: Path,
    texts: Sequence[str],
    vectorise: Vectorise,
    block: int,
    label: str,
    zeros_allowed: bool = False,
) -> Int[np.ndarray, "zeros"]:
    """Writes the unit vectors of texts to a `.npy`, `block` texts at a time.

    How many rows are done is kept beside the file, after they are on disk, so that a
    killed run goes on behind its last whole block. The caller removes these markers
    when all files are whole.

    Returns:
      The rows that are zero, among those that this run wrote.

    Raises:
      ValueError: a vector is not finite, or zero where that is not allowed.
    """
    marker = path.with_suffix(_DONE)
    done = json.loads(marker.read_text()) if marker.is_file() else 0
    out = np.load(path, "r+") if done else None
    zeros = []
    with progress(label, len(texts), done) as advance:
        for start in range(done, len(texts), block):
            stop = min(start + block, len(texts))
            x = vectorise([texts[i] for i in range(start, stop)])
            x = unit_rows(x if zeros_allowed else check_vectors(x, label, start))
            if out is None:
                out = _create(path, len(texts), x.shape[1])
            out[start:stop] = x
            out.flush()
            artifacts.write_json(marker, stop)
            zeros.append(start + np.flatnonzero(~x.any(axis=1)))
            advance(stop - start)
    return np.concatenate([np.zeros(0, np.int64), *zeros])


def _from_tfidf(config: Config, pairs: Pairs, _: str, folder: Path) -> dict[str, Any]:
    from cdejax.clustering.tfidf import fit_tfidf

    train = pairs.train
    model = fit_tfidf(
        pairs.queries,
        pairs.documents,
        np.stack([train.query, train.document], 1),
        config.vectors.dim,
        config.seed,
    )
    counts: dict[str, Any] = {"dim": config.vectors.dim, **model.counts}
    empty = {}
    for side, texts in zip(SIDES, (pairs.queries, pairs.documents), strict=True):
        path = folder / f"{side}.npy"
        empty[side] = write_blocks(path, texts, model, 8192, f"tf-idf {side}", True)
    links = [(p.query, p.document) for p in (pairs.train, pairs.heldout)]
    query, document = (np.concatenate(column) for column in zip(*links, strict=True))
    q, d = (np.load(folder / f"{side}.npy", "r+") for side in SIDES)
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

    A text without a known word says nothing, so it goes where its partner goes, and its
    own pair scores 1: nothing is masked on its account. Where partners are empty too it
    takes the first axis.

    Args:
      rows: rows without a vector.
      own: for every pair, its row on this side.
      other: for every pair, its row on the other side.
      vectors: unit vectors of the other side (zeros where it is empty).
    """
    out = np.zeros((len(rows), vectors.shape[1]), np.float32)
    place = np.full(int(own.max(initial=-1)) + 2, -1)
    place[rows[rows < len(place)]] = np.flatnonzero(rows < len(place))
    touched = place[own] >= 0
    np.add.at(out, place[own[touched]], vectors[other[touched]])
    out[~out.any(axis=1), 0] = 1
    return unit_rows(out)


def _from_encoder(config: Config, pairs: Pairs, _: str, folder: Path) -> dict[str, Any]:
    from cdejax.embedder import load

    settings = config.vectors
    embedder = load(resolve_folder(settings.encoder or "", "vectors.encoder"))
    if embedder.context_size is not None:
        raise ValueError(
            f"vectors.encoder: {settings.encoder} is contextual; give a plain biencoder"
        )
    for side, kind, texts in (
        ("queries", "query", pairs.queries),
        ("documents", "document", pairs.documents),
    ):

        def vectorise(block: Sequence[str], kind: Any = kind) -> np.ndarray:
            return embedder.encode(block, kind=kind, batch_size=settings.batch_size)

        size = 16 * settings.batch_size
        write_blocks(folder / f"{side}.npy", texts, vectorise, size, f"embed {side}")
    return {"dim": np.load(folder / "queries.npy", "r").shape[1]}


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
    """A `.npy` whose space is taken: a full disk is an error here, not a crash."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
    with open(path, "r+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
    return out


def _input_hashes(settings: VectorsConfig) -> dict[str, str]:
    """Contents that the vectors depend on."""
    if settings.method == "tfidf":
        return {}
    if settings.method == "encoder":
        folder = resolve_folder(settings.encoder or "", "vectors.encoder")
        return {"encoder": artifacts.hash_files(folder)}
    hashes = {}
    for side in SIDES:
        path = Path(getattr(settings, side))
        if not path.is_file():
            raise ValueError(f"vectors.{side}: {path}: no such file.")
        hashes[side] = artifacts.hash_files(path)
    return hashes


_BUILDERS = {"tfidf": _from_tfidf, "encoder": _from_encoder, "file": _from_files}
