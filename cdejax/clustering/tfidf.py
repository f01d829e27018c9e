"""TF-IDF with a truncated SVD: surrogate vectors without a model.

Features are the first five characters of words, case-folded, with identifiers split at
underscores and changes of case: a rough stemmer that suits both prose and code. The SVD
is fitted on pairs (query + document as one text), which links the words of queries to
those of their documents, and its dimensions are whitened, so that a few broad topics do
not dominate. On 20,000 mixed pairs at 128 dimensions the in-batch top-1 rate (batches
of 512) was 0.19 with whole words and an SVD of all texts, and 0.39 with all three.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

FIT_PAIRS = 200_000
"""Maximum number of pairs used to fit vocabulary and SVD (a seeded sample)."""
MAX_WORDS = 100_000
_NOISE = 1e-5
"""Singular values below this share of the largest are float32 rounding errors."""
_log = logging.getLogger(__name__)
_CASE_CHANGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = r"([^\W_]{1,5})[^\W_]*"


@dataclass(frozen=True)
class Tfidf:
    """A fitted model that maps texts to unnormalised float32 vectors."""

    words: Any
    components: Float[np.ndarray, "dim words"]
    counts: dict[str, Any]
    """Vocabulary size, pairs used for fitting, share of variance kept."""

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        """Vectors of texts; zeros for a text without known words."""
        return self.words.transform(texts) @ self.components.T


def fit_tfidf(
    queries: Sequence[str],
    documents: Sequence[str],
    pairs: Int[np.ndarray, "pairs 2"],
    dim: int,
    seed: int,
) -> Tfidf:
    """Fits vocabulary and SVD on pairs of texts.

    Args:
      queries: query texts.
      documents: document texts.
      pairs: query and document row of each pair.
      dim: dimensions kept; fewer, with a warning, if the texts span fewer.
      seed: seed of the sample of pairs and of the randomised SVD.

    Raises:
      ValueError: no word occurs in more than one text.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    if len(pairs) > FIT_PAIRS:
        chosen = np.random.default_rng(seed).choice(len(pairs), FIT_PAIRS, False)
        pairs = pairs[np.sort(chosen)]
    words = TfidfVectorizer(
        preprocessor=_split_case,
        token_pattern=_WORD,
        sublinear_tf=True,
        min_df=2,  # a word of a single text links it to no other
        max_features=MAX_WORDS,
        dtype=np.float32,  # type: ignore[arg-type]
    )
    texts = [queries[q] for q, _ in pairs] + [documents[d] for _, d in pairs]
    try:
        x = words.fit_transform(texts)
    except ValueError:
        raise ValueError(
            f"vectors: no word occurs in two of the {len(texts)} texts, so TF-IDF has "
            "nothing to compare; use method `encoder` or `file`."
        ) from None
    joint: Any = normalize(x[: len(pairs)] + x[len(pairs) :])
    most = min(dim, *joint.shape)
    svd: Any = TruncatedSVD(most, n_iter=4, random_state=seed).fit(joint)
    scale = svd.singular_values_
    real = scale > _NOISE * scale[0]
    if (kept := int(real.sum())) < dim:
        _log.warning(
            "vectors.dim is %d, but %d pairs with %d words span %d dimensions only; "
            "the vectors have as many",
            *(dim, *joint.shape, kept),
        )
    return Tfidf(
        words,
        (svd.components_[real] / scale[real, None]).astype(np.float32),
        {
            "dim": kept,
            "dim_asked": dim,
            "words": joint.shape[1],
            "fitted_pairs": len(pairs),
            "variance_kept": round(float(svd.explained_variance_ratio_.sum()), 4),
        },
    )


def _split_case(text: str) -> str:
    return _CASE_CHANGE.sub(" ", text).lower()
