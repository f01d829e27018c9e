"""Damaged tokenizers end in one clear line: no panic, no abort, no traceback."""

# ruff: noqa: E501 (one case a line)

import base64
import json
import subprocess
import sys

import numpy as np
import pytest

from cdejax.data.charsmap import check_charsmap
from cdejax.data.tokenizer import Tokenizer
from tests.models.folder_cases import charsmap

MAP = charsmap({"ﬁ": "fi", "Ⅷ": "VIII", "é": "e"})


WORDS = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "vocab": {},
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


def stored(model=None, **parts):
    """A small tokenizer.json."""
    usual = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "vocab": {"[UNK]": 0, "[PAD]": 1},
    }
    usual |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    sections = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    return empty | dict.fromkeys(sections) | {"model": model or usual} | parts


def precompiled(content):
    encoded = base64.b64encode(content).decode()
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["<pad>", -1.0]]}
    normalizer = {"type": "Precompiled", "precompiled_charsmap": encoded}
    return stored(model, normalizer={"type": "Sequence", "normalizers": [normalizer]})


def template(token, ids):
    single = [{"SpecialToken": {"id": token, "type_id": 0}},
              {"Sequence": {"id": "A", "type_id": 0}}]  # fmt: skip
    special = {token: {"id": token, "ids": ids, "tokens": [token]}} if ids else {}
    return {"type": "TemplateProcessing", "single": single, "pair": single,
            "special_tokens": special}  # fmt: skip


def broken(place, value):
    """The map with one byte after another changed."""
    return MAP[:place] + value + MAP[place + len(value) :]


BAD = {
    "an empty vocabulary": (stored(WORDS), "empty vocabulary"),
    "an empty Unigram": (stored({"type": "Unigram", "unk_id": 0, "vocab": []}), "cannot read"),
    "a token without id": (stored(post_processor=template("[CLS]", [])), r"\[CLS\].* no token"),
    "an id outside": (stored(post_processor=template("[CLS]", [99])), r"\[CLS\].* no token"),
    "BERT's ends": (
        stored(post_processor={"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 8]}),
        r"\[SEP\].* no token",
    ),
    "no model": (stored(model={"type": "Own"}), "cannot read"),
    "a model that is a list": (stored(model=[1]), "model is"),
    "added tokens of texts": (stored(added_tokens=["a"]), "is not a token"),
    "no map": (precompiled(b""), "precompiled_charsmap is not a base64"),
    "a short map": (precompiled(b"ab"), "precompiled_charsmap is not a base64"),
    "a long map of nothing": (precompiled(b"x" * 5000), "says that its trie has"),
    "a map of no trie": (precompiled(bytes(4)), "says that its trie has 0"),
    "a trie that leaves": (precompiled(np.uint32(4096).tobytes() + b"\xff" * 4096), "leads out"),
    "a trie cut short": (precompiled(MAP[:-3000]), "says that its trie has"),
    "replacements cut": (precompiled(MAP[: MAP.rindex(b"VIII")]), "leads out"),
    "a wrong root": (precompiled(broken(4, b"\xff\xff")), "leads out"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_tokenizers_are_named(tmp_path, name, capfd):
    content, match = BAD[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=match) as caught:
        Tokenizer.load(tmp_path)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "panicked" not in capfd.readouterr().err


def test_a_sound_map_passes_and_is_used(tmp_path):
    assert check_charsmap(base64.b64encode(MAP).decode(), "x") == MAP
    (tmp_path / "tokenizer.json").write_text(json.dumps(precompiled(MAP)))
    Tokenizer.load(tmp_path).encode(["ﬁ Ⅷ é and more"])


def test_no_map_that_passes_panics():
    """Maps with random bytes: those that are let through, every text can be read by."""
    code = (
        "import base64, json, sys; import numpy as np\n"
        "from tokenizers.normalizers import Precompiled\n"
        "maps = [base64.b64decode(m) for m in json.load(sys.stdin)]\n"
        "chars = ''.join(map(chr, [*range(1, 0x500), *range(0x2100, 0x2200), 0xFB01]))\n"
        "for content in maps:\n"
        "    normalizer = Precompiled(content)\n"
        "    for at in range(0, len(chars), 64): normalizer.normalize_str(chars[at:at+64])\n"
        "print(len(maps))\n"
    )
    rng = np.random.default_rng(0)
    used = np.flatnonzero(np.frombuffer(MAP, np.uint8))
    passed = []
    for _ in range(300):
        changed = bytearray(MAP)
        for place in rng.choice(used, 2):
            changed[place] ^= 1 << rng.integers(8)
        encoded = base64.b64encode(bytes(changed)).decode()
        try:
            check_charsmap(encoded, "x")
        except ValueError:
            continue
        passed.append(encoded)
    assert 20 < len(passed) < 280
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(passed),
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(len(passed)), done.stderr[-500:]
