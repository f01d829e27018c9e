"""Similarity functions of vectors, under sentence-transformers' names."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


def check_similarity(name: Any, source: str) -> Similarity:
    """Returns the name of a similarity function; raises ValueError if it is unknown.

    Args:
      name: the name to check.
      source: where it was read, for the message.
    """
    for known in get_args(Similarity):
        if name == known:
            return known
    raise ValueError(
        f"{source}: similarity_fn_name {name!r} is not one of {get_args(Similarity)}"
    )


def unit(vectors: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
    """Vectors divided by their L2 norm; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)


def similarity(
    one: Float[np.ndarray, "rows dim"],
    other: Float[np.ndarray, "columns dim"],
    name: Similarity,
) -> Float[np.ndarray, "rows columns"]:
    """Scores of all pairs: cosine, dot product or negative distance."""
    from scipy.spatial.distance import cdist

    if name == "dot":
        return one @ other.T
    if name == "cosine":
        return unit(one) @ unit(other).T
    metric = "cityblock" if name == "manhattan" else "euclidean"
    return -cdist(one, other, metric).astype(np.float32)
