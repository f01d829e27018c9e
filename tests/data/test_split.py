"""Near-duplicates and equal texts never cross the split; groups are never cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.data.split import (
    PERMUTATIONS,
    hold_out,
    join,
    minhash,
    near_duplicate_groups,
    row_groups,
)


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def jaccard(a: str, b: str) -> float:
    left, right = shingles(a), shingles(b)
    return len(left & right) / len(left | right)


def random_text(rng: np.random.Generator, words: int) -> list[str]:
    return [f"w{n}" for n in rng.integers(0, 5000, words)]


def groups_of(texts: list[str], threshold: float = 0.7) -> np.ndarray:
    return near_duplicate_groups(texts, np.arange(len(texts)), threshold)


def test_minhash_estimates_jaccard() -> None:
    rng = np.random.default_rng(0)
    for share in (0.02, 0.05, 0.1, 0.3):
        words = random_text(rng, 400)
        other = [w if rng.random() > share else f"x{i}" for i, w in enumerate(words)]
        a, b = minhash([" ".join(words), " ".join(other)])
        true = jaccard(" ".join(words), " ".join(other))
        error = 4 * np.sqrt(true * (1 - true) / PERMUTATIONS)
        assert abs((a == b).mean() - true) < error


def test_signature_does_not_depend_on_the_other_texts() -> None:
    texts = ["one", "one two", "", "a b c", "!!!", "Ein längerer Text, mit Ähnlichem"]
    together = minhash(texts)
    alone = np.concatenate([minhash([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(together, axis=0)) == len(texts)


def test_planted_near_duplicates_are_found_and_strangers_are_not() -> None:
    rng = np.random.default_rng(1)
    texts, family = [], []
    for number in range(150):
        words = random_text(rng, 120)
        for _ in range(1 + number % 4):
            changed = list(words)
            for place in rng.integers(0, 120, 4):  # similarity about 0.8
                changed[place] = f"x{rng.integers(10**6)}"
            texts.append(" ".join(changed))
            family.append(number)
    groups = groups_of(texts)
    for a in range(len(texts)):
        for b in range(a):
            if family[a] != family[b]:
                assert groups[a] != groups[b]
            elif jaccard(texts[a], texts[b]) > 0.8:
                assert groups[a] == groups[b]


def test_case_and_punctuation_do_not_matter() -> None:
    a = "The quick brown fox jumps over the lazy dog, twice a day."
    groups = groups_of([a, a.upper().replace(",", ";"), "Something else entirely here"])
    assert groups[0] == groups[1] != groups[2]


def test_scripts_without_spaces() -> None:
    a = "東京は日本の首都であり世界最大の都市圏を形成している都市である"
    groups = groups_of([a, a + "。", "大阪は西日本の中心となる都市で商業が盛んである"])
    assert groups[0] == groups[1] != groups[2]


def test_thousands_of_copies_cost_little() -> None:
    texts = [
        f"the same long text with all its many words number {i % 3}"
        for i in range(9000)
    ]
    assert len(np.unique(groups_of(texts))) == len(np.unique(groups_of(texts[:3])))


def test_no_documents() -> None:
    assert groups_of([]).shape == (0,)


pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20)


@given(pairs)
def test_join_is_union_find(links: list[tuple[int, int]]) -> None:
    parent = list(range(13))
    for a, b in links:
        old, new = parent[a], parent[b]
        parent = [new if p == old else p for p in parent]
    array = np.array(links, np.int64).reshape(-1, 2).T
    joined = join(np.arange(13), [array])
    expected = np.equal.outer(parent, parent)
    np.testing.assert_array_equal(np.equal.outer(joined, joined), expected)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1),
    st.integers(0, 5),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(0, 20)),
)
def test_a_group_is_never_cut(
    rows: list[tuple[int, int]], seed: int, fraction: float, limit: int | None
) -> None:
    document, query = np.array(rows).T
    groups = row_groups(document, query)
    content = document.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    out = hold_out(groups, content, seed=seed, fraction=fraction, limit=limit)
    for ids in (document, query, groups):
        assert not set(ids[out]) & set(ids[~out])
    if fraction or limit is None:
        assert out.sum() <= fraction * len(rows)
    assert limit is None or out.sum() <= limit
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = hold_out(
        row_groups(document[order], query[order]),
        content[order],
        seed=seed,
        fraction=fraction,
        limit=limit,
    )
    assert set(document[order][shuffled]) == set(document[out])


def test_the_choice_depends_on_the_seed_and_not_on_the_size_of_groups() -> None:
    rng = np.random.default_rng(0)
    groups = np.concatenate([np.arange(2000), np.repeat(np.arange(2000, 2400), 5)])
    content = rng.integers(0, 2**63, len(groups), np.uint64)
    big = []
    for seed in range(20):
        out = hold_out(groups, content, seed=seed, fraction=0.2)
        assert out.sum() == pytest.approx(800, abs=5)
        big.append(out[2000:].mean())
    assert len(set(big)) > 10
    assert np.mean(big) == pytest.approx(0.2, abs=0.03)
