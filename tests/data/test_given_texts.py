"""Containers of texts: rows in order, or refused."""

import collections
from typing import Any

import numpy as np
import pytest

from cdejax.data.given_texts import as_rows, check_texts
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.choice import Choice
from cdejax.retrieval.bm25 import BM25

TEXTS = ["the cat", "a dog", "fish", "green"]


class Series:
    """What a pandas Series does: `[i]` looks up a label, `tolist` gives the rows."""

    ndim = 1
    iloc = None

    def __init__(self, rows: list[str]):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, label: int) -> str:
        return sorted(self._rows)[label]

    def tolist(self) -> list[str]:
        return self._rows


@pytest.mark.parametrize(
    "make", [list, tuple, np.array, collections.deque, Series], ids=lambda m: m.__name__
)
def test_rows_keep_their_order(make):
    rows = check_texts(make(TEXTS))
    assert [rows[i] for i in range(len(rows))] == TEXTS


def test_a_series_of_pandas_is_read_by_position():
    pandas = pytest.importorskip("pandas")
    for series in (
        pandas.Series(TEXTS).sample(frac=1, random_state=1),
        pandas.Series(TEXTS, index=[7, 7, "a", None]),
        pandas.Series(TEXTS)[lambda s: s != "fish"],
    ):
        assert list(as_rows(series)) == series.tolist()
    with pytest.raises(ValueError, match=r"DataFrame was given.*df\[\"text\"\]"):
        as_rows(pandas.DataFrame({"text": TEXTS}))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one", "wrap it in a list"),
        (b"one", "wrap it in a list"),
        ({"a": "x"}, "a dict was given, make it a list"),
        ({"x"}, "a set was given, make it a list"),
        (frozenset("x"), "a frozenset was given"),
        ({"a": "x"}.values(), "a dict_values was given"),
        ({"a": "x"}.keys(), "a dict_keys was given"),
        ((text for text in TEXTS), "a generator was given"),
        (np.array([TEXTS]), "a ndarray of 2 axes was given"),
        (np.array("x"), "a ndarray of 0 axes was given"),
        (None, "a NoneType was given"),
        (3, "a int was given"),
    ],
)
def test_what_does_not_number_its_rows_is_refused_everywhere(texts, message, minilm):
    for call in (
        as_rows,
        check_texts,
        Tokenizer.load(minilm).encode,
        Choice(4, None, 0, "random", None, "mask").candidates_of,
    ):
        with pytest.raises(ValueError, match=message):
            call(texts)


def test_a_baseline_reads_no_keys_of_a_mapping():
    texts: Any = {"a": "x"}
    with pytest.raises(ValueError, match="a dict was given, make it a list"):
        BM25(texts)
