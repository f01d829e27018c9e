"""Contexts of a contextual encoder in an evaluation."""

from __future__ import annotations

import string
from typing import Literal

import numpy as np

from cdejax.data.beir import Collection
from cdejax.embedding.embedder import Embedder
from cdejax.models.context import Context

ContextKind = Literal["corpus", "null", "random", "other-domain"]
KINDS: tuple[ContextKind, ...] = ("corpus", "null", "random", "other-domain")
_WORDS = (5, 40)
_LETTERS = (2, 10)


def make_context(
    embedder: Embedder,
    kind: ContextKind,
    collection: Collection,
    *,
    seed: int = 0,
    other: Collection | None = None,
    batch_size: int = 128,
) -> Context:
    """A context of the embedder's full size, sampled with the seed.

    Args:
      embedder: the embedder of a contextual model.
      kind: `corpus` (documents of the collection, the intended use of CDE), `null` (no
        context: null vectors), `random` (meaningless strings, which CDE's authors
        recommend for an unknown corpus) or `other-domain` (documents of `other`).
      collection: the collection that is evaluated.
      seed: seed of the sample.
      other: a collection of another domain.
      batch_size: number of texts encoded at once.

    Raises:
      ValueError: unknown kind, or `other-domain` without another collection.
    """
    if kind not in KINDS:
        raise ValueError(f"context {kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "null":
        return embedder.context([], size=0, seed=seed)
    if kind == "random":
        texts = random_texts(embedder.context_size or 0, seed)
    elif kind == "corpus":
        texts = collection.documents
    elif other is None:
        raise ValueError(
            "context 'other-domain' needs a second collection to take documents from"
        )
    else:
        texts = other.documents
    return embedder.context(texts, seed=seed, batch_size=batch_size)


def random_texts(count: int, seed: int) -> list[str]:
    """Strings of random words of random lower-case letters."""
    rng = np.random.default_rng(seed)
    letters = np.array(list(string.ascii_lowercase))
    texts = []
    for words in rng.integers(*_WORDS, count):
        sizes = rng.integers(*_LETTERS, words)
        texts.append(" ".join("".join(rng.choice(letters, size)) for size in sizes))
    return texts
