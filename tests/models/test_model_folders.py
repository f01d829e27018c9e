"""Folders of all kinds: what both libraries give, or a refusal, never a third thing."""

import re
import shutil

import numpy as np
import pytest

import cdejax
from tests.models.folder_cases import CASES, TEXTS, build

sentence_transformers = pytest.importorskip("sentence_transformers")
USUAL = (
    "bert",
    "t5",
    "added_tokens.json",
    "added_tokens_decoder, generic",
    "truncation_side",
    "stored direction",
    "lower, class, said false",
    "tokenizer_args truncation_side",
    "tokenizer_args do_lower_case",
    "module.",
    "given twice, different",
    "Router",
    "adapter",
    "quantization_config",
    "japanese",
)
"""Cases of every run; the others are slow."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The unspoilt folder of an architecture, made once."""
    place, made = tmp_path_factory.mktemp("bases"), {}

    def folder(kind):
        if kind not in made:
            build(kind, place / kind)
            made[kind] = place / kind
        return made[kind]

    return folder


def parameters():
    marks = {name: () if name in USUAL else pytest.mark.slow for name in CASES}
    return [pytest.param(name, id=name, marks=marks[name]) for name in CASES]


@pytest.mark.parametrize("name", parameters())
def test_equals_both_libraries_or_is_refused(base, tmp_path, name):
    case = CASES[name]
    folder = tmp_path / "folder"
    shutil.copytree(base(case.base), folder)
    case.change(folder)
    if case.refused is not None:
        with pytest.raises(ValueError, match=case.refused) as caught:
            cdejax.load(folder)
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    oracle = folder
    if case.like is not None:
        oracle = tmp_path / "oracle"
        shutil.copytree(base(case.base), oracle)
        case.like(oracle)
    theirs = sentence_transformers.SentenceTransformer(str(oracle), device="cpu")
    ours = cdejax.load(folder)
    limit = theirs.max_seq_length
    ids = theirs.tokenizer(TEXTS, truncation=True, max_length=limit)["input_ids"]
    assert ours.max_length == limit
    assert [row.tolist() for row in ours.tokenizer.encode(TEXTS, limit)[0]] == ids
    expected = theirs.encode(TEXTS)
    found = ours.encode(TEXTS)
    cosines = (found * expected).sum(1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() >= 0.99999


def test_there_are_at_least_sixty_folders():
    assert len(CASES) >= 60
    assert set(USUAL) <= set(CASES)
    assert all(re.compile(case.refused or "") for case in CASES.values())
