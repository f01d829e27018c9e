"""Near-duplicate detection, and a training/held-out split that respects it.

Near-duplicates are found by MinHash over word 3-grams with banded locality-sensitive
hashing (Broder 1997; Leskovec, Rajaraman and Ullman, chapter 3).
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Int, Int64, UInt64

from cdejax.runtime.progress import progress

PERMUTATIONS = 128
BANDS = 32
"""Bands of 4 values: pairs of similarity 0.7 share one with probability 0.9998."""
_BLOCK = 4096
_WORD = re.compile(
    # Scripts without spaces are split into characters, all others into words.
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff]+"
)

Hashes = UInt64[np.ndarray, "..."]


def mix(values: Hashes) -> Hashes:
    """Scrambles 64-bit integers bijectively (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def near_duplicate_groups(
    documents: Sequence[str], rows: Int[np.ndarray, "rows"], threshold: float
) -> Int64[np.ndarray, "rows"]:
    """Numbers the groups of near-duplicates among the given rows of `documents`.

    Two documents are linked if their estimated Jaccard similarity (the share of equal
    MinHash values) is at least `threshold` minus two standard errors (0.08 at 0.7), so
    that hardly any pair above the threshold is missed. Groups are the connected
    components of the links.
    """
    margin = 2 * math.sqrt(threshold * (1 - threshold) / PERMUTATIONS)
    blocks = []
    with progress("signatures", len(rows)) as advance:
        for start in range(0, len(rows), _BLOCK):
            texts = [documents[int(row)] for row in rows[start : start + _BLOCK]]
            blocks.append(minhash(texts))
            advance(len(texts))
    if not blocks:
        return np.zeros(0, np.int64)
    signatures, where = np.unique(np.concatenate(blocks), axis=0, return_inverse=True)
    return _link(signatures, threshold - margin)[where.reshape(-1)]


def minhash(texts: Sequence[str]) -> Int[np.ndarray, "texts {PERMUTATIONS}"]:
    """MinHash signatures (uint32) of the texts' sets of lower-case word 3-grams.

    A text of fewer than three words counts as one n-gram; a text without words, as the
    text itself.
    """
    words = [_WORD.findall(text.lower()) or [text] for text in texts]
    lengths = np.array([max(len(row), 3) for row in words])
    codes: dict[str, int] = {"": 0}
    flat = [
        codes.get(w) or codes.setdefault(w, zlib.crc32(w.encode()) + 1)
        for row in words
        for w in (row if len(row) >= 3 else [*row, "", ""][:3])
    ]
    hashes = mix(np.array(flat, np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    odd = np.uint64(0x9E3779B97F4A7C15)
    grams = mix(mix(hashes[:-2] * odd + hashes[1:-1]) * odd + hashes[2:])
    ends = np.cumsum(lengths)
    inside = np.ones(len(hashes), bool)
    inside[np.concatenate([ends - 1, ends - 2])] = False
    grams = grams[inside[:-2]]
    starts = np.concatenate([[0], np.cumsum(lengths - 2)[:-1]])
    out = np.empty((len(texts), PERMUTATIONS), np.uint32)
    rng = np.random.default_rng(0)
    factors = rng.integers(0, 2**64, PERMUTATIONS, np.uint64) | np.uint64(1)
    for column, factor in enumerate(factors):
        permuted = ((grams * factor) >> np.uint64(32)).astype(np.uint32)
        out[:, column] = np.minimum.reduceat(permuted, starts)
    return out


def _link(
    signatures: Int[np.ndarray, "n permutations"], threshold: float
) -> Int64[np.ndarray, "n"]:
    """Links signatures that share a band and agree in `threshold` of their values."""
    groups = np.arange(len(signatures))
    width = PERMUTATIONS // BANDS
    with progress("near-duplicates", BANDS) as advance:
        for band in range(BANDS):
            keys = np.zeros(len(signatures), np.uint64)
            for column in range(band * width, (band + 1) * width):
                keys = mix(keys * np.uint64(3) + signatures[:, column])
            groups = _link_band(signatures, keys, groups, threshold)
            advance(1)
    return groups


def _link_band(
    signatures: Int[np.ndarray, "n permutations"],
    keys: UInt64[np.ndarray, "n"],
    groups: Int64[np.ndarray, "n"],
    threshold: float,
) -> Int64[np.ndarray, "n"]:
    """Compares all pairs within one band's buckets that are not in one group yet.

    Sorted by key, the members of a bucket are adjacent: comparing each row with the row
    `distance` positions on, for growing distances, visits all pairs of all buckets.
    """
    order = np.argsort(keys, kind="stable")
    same = keys[order]
    left = np.arange(len(order))
    links: list[np.ndarray] = []
    distance = 1
    while True:
        left = left[left + distance < len(order)]
        left = left[same[left] == same[left + distance]]
        if len(left) == 0:
            break
        a, b = order[left], order[left + distance]
        new = groups[a] != groups[b]
        a, b = a[new], b[new]
        close = _agreement(signatures, a, b) >= threshold
        links.append(np.stack([groups[a[close]], groups[b[close]]]))
        if distance.bit_count() == 1:  # now and then, so that large groups stay cheap
            groups = join(groups, links)
            links = []
        distance += 1
    return join(groups, links)


def _agreement(
    signatures: Int[np.ndarray, "n permutations"],
    a: Int[np.ndarray, "pairs"],
    b: Int[np.ndarray, "pairs"],
    block: int = 1 << 16,
) -> np.ndarray:
    shares = [
        (signatures[a[i : i + block]] == signatures[b[i : i + block]]).mean(1)
        for i in range(0, len(a), block)
    ]
    return np.concatenate(shares) if shares else np.zeros(0)


def join(
    groups: Int64[np.ndarray, "n"], links: Iterable[Int64[np.ndarray, "2 m"]]
) -> Int64[np.ndarray, "n"]:
    """Renumbers `groups` so that linked groups (pairs of numbers < n) become one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = list(links)
    if not sum(link.shape[1] for link in links):
        return groups
    a, b = np.concatenate(links, axis=1)
    graph = coo_array((np.ones(len(a), bool), (a, b)), shape=(len(groups),) * 2)
    return connected_components(graph, directed=False)[1].astype(np.int64)[groups]


def row_groups(
    document_group: Int64[np.ndarray, "rows"], query: Int64[np.ndarray, "rows"]
) -> Int64[np.ndarray, "rows"]:
    """Groups of rows connected by a shared document group or an equal query text."""
    documents = np.unique(document_group, return_inverse=True)[1]
    queries = np.unique(query, return_inverse=True)[1]
    nodes = np.arange(len(document_group) * 2)
    links = np.stack([documents, queries + len(document_group)])
    return join(nodes, [links])[documents]


def hold_out(
    groups: Int64[np.ndarray, "rows"],
    content: UInt64[np.ndarray, "rows"],
    *,
    seed: int,
    fraction: float,
    limit: int | None = None,
) -> Bool[np.ndarray, "rows"]:
    """Mask of the rows of whole groups chosen for the held-out part.

    Groups are taken in the order of a seeded hash of their content, so the choice does
    not depend on the order of the rows. A group that would bring the part above its
    target stays in training. So does a group larger than a twentieth of the target (and
    than 8 rows), since one boilerplate text would otherwise dominate the part.

    Args:
      groups: group number of each row.
      content: hash of each row's content.
      seed: seed of the choice.
      fraction: share of the rows to hold out; if 0, only `limit` applies.
      limit: maximum number of rows to hold out.
    """
    target = int(len(groups) * fraction) if fraction or limit is None else limit
    target = target if limit is None else min(target, limit)
    if target == 0:
        return np.zeros(len(groups), bool)
    groups, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    salt = mix(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    keys = np.full(len(sizes), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(keys, groups, content)
    taken, rows = np.zeros(len(sizes), bool), 0
    largest = max(8, target // 20)
    for group in np.argsort(mix(keys ^ salt), kind="stable"):
        if sizes[group] <= min(largest, target - rows):
            taken[group] = True
            rows += int(sizes[group])
    return taken[groups]
