"""Texts to token rows, with the encoder's own tokenizer."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

if TYPE_CHECKING:
    import tokenizers

from cdejax.reading import is_file, is_folder, opened, read_json_if_there, read_text

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""What makes a tokenizer in a Hugging Face folder (where present)."""


class Tokenizer:
    """A Rust tokenizer (all cores, no fork) that never pads and cuts only when told.

    A tokenizer.json may store truncation and padding (all-MiniLM-L6-v2 cuts at 128
    and pads to 128); both are switched off.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, pad_token: str, beside: Sequence[Path]
    ):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._beside = beside
        self.pad_token = pad_token
        self.pad_id = tokenizer.get_vocab()[pad_token]
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        self.special_tokens = tokenizer.num_special_tokens_to_add(False)
        added = tokenizer.get_added_tokens_decoder().items()
        self.special_ids = frozenset(index for index, token in added if token.special)

    @functools.cached_property
    def hash(self) -> str:
        """Hash (16 hex digits) of all that decides a text's tokens, but the length."""
        self._tokenizer.no_truncation()
        text = self._tokenizer.to_str()
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Reads `tokenizer.json`, or else `vocab.txt` as BERT's WordPiece.

        Raises:
          ValueError: neither file is there, one cannot be read, or nothing says which
            token pads.
        """
        import tokenizers

        folder = _place(Path(folder))
        file, vocab = folder / "tokenizer.json", folder / "vocab.txt"
        fast = is_file(file)
        if not fast and not is_file(vocab):
            raise ValueError(
                f"{folder}: no tokenizer there (neither tokenizer.json nor vocab.txt). "
                "Copy the encoder's tokenizer files into the folder."
            )
        try:
            if fast:
                tokenizer = tokenizers.Tokenizer.from_str(read_text(file))
            else:
                tokenizer = _wordpiece(vocab, read_json_if_there(folder / FILES[1]))
        except Exception as error:  # tokenizers raises plain Exception
            broken = file if fast else vocab
            raise ValueError(f"{broken}: cannot read the tokenizer: {error}") from None
        module = read_json_if_there(folder / "sentence_bert_config.json")
        if module.get("do_lower_case"):
            _lower_first(tokenizer)
        beside = [opened(f) for name in FILES[1:] if is_file(f := folder / name)]
        return cls(tokenizer, _pad_token(folder, tokenizer), beside)

    def encode(
        self, texts: Sequence[str], max_length: int | None = None
    ) -> tuple[list[Int[np.ndarray, "length"]], Bool[np.ndarray, " texts"]]:
        """Token ids (int32) of every text with its special tokens, and which were cut.

        A text longer than `max_length` tokens (special tokens included) loses text
        tokens at its end; its special tokens stay.

        Raises:
          ValueError: an item is no string or no Unicode (lone surrogate), named by
            index; or `max_length` leaves no room for a text token.
        """
        check_texts(texts)
        if max_length is None:
            self._tokenizer.no_truncation()
        elif max_length <= self.special_tokens:
            raise ValueError(
                f"max_length {max_length}: this tokenizer adds {self.special_tokens} "
                f"special tokens, so give {self.special_tokens + 1} or more."
            )
        else:
            self._tokenizer.enable_truncation(max_length)
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        rows = [np.array(encoding.ids, np.int32) for encoding in encodings]
        cut = np.array([bool(encoding.overflowing) for encoding in encodings], bool)
        return rows, cut

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer's files; tokenizer.json without stored cut and padding.

        A vocab.txt-only tokenizer gets a tokenizer.json, too.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for file in self._beside:
            shutil.copyfile(file, folder / file.name)
        if not (folder / FILES[1]).is_file():
            # without it, nothing would say which token pads
            kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
            config = json.dumps(kind | {"pad_token": self.pad_token}, indent=2)
            (folder / FILES[1]).write_text(config + "\n", encoding="utf-8")
        self._tokenizer.no_truncation()
        # its own `save` hides why a file cannot be written
        text = self._tokenizer.to_str(pretty=True)
        (folder / FILES[0]).write_text(text, encoding="utf-8")


def _place(folder: Path) -> Path:
    """The folder, or `0_Transformer` in it, where older sentence-transformers wrote."""
    older = folder / "0_Transformer"
    held = any(is_file(folder / name) for name in ("tokenizer.json", "vocab.txt"))
    return older if not held and is_folder(older) else folder


def check_texts(texts: Sequence[str]) -> None:
    """ValueError, by index, where an item is no string or no Unicode."""
    if isinstance(texts, str):
        raise ValueError("texts: one string was given, wrap it in a list")
    if not hasattr(texts, "__len__"):  # a generator can be read only once
        raise ValueError(f"texts: a {type(texts).__name__} was given, make it a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise ValueError(f"texts[{index}]: a {kind} ({text!r:.60}), not a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}]: not Unicode at character {error.start} "
                f"({text[error.start]!r}, a lone surrogate); clean the text first"
            ) from None


def _wordpiece(vocab: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """BERT's tokenizer from its vocabulary, as transformers builds it."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    names = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    token = {name: _content(config.get(name)) or f"[{name[:-6].upper()}]"
             for name in names}  # fmt: skip
    model = models.WordPiece.from_file(str(opened(vocab)), unk_token=token["unk_token"])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", True),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = tokenizer.get_vocab()
    tokenizer.add_special_tokens([t for t in token.values() if t in ids])
    cls, sep = token["cls_token"], token["sep_token"]
    if cls not in ids or sep not in ids:
        raise ValueError(f"the vocabulary has no {cls} or no {sep}")
    tokenizer.post_processor = processors.BertProcessing(
        (sep, ids[sep]), (cls, ids[cls])
    )
    return tokenizer


def _lower_first(tokenizer: tokenizers.Tokenizer) -> None:
    """Lower-cases before all else, as sentence-transformers' `do_lower_case` asks."""
    from tokenizers import normalizers

    old = tokenizer.normalizer
    one = not isinstance(old, normalizers.Sequence)
    parts: list[Any] = [old] if one else [old[i] for i in range(len(old))]
    parts = [part for part in parts if part is not None]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def _pad_token(folder: Path, tokenizer: tokenizers.Tokenizer) -> str:
    """The padding token by the folder's files, or a customary name."""
    sides = [read_json_if_there(folder / name) for name in FILES[1:3]]
    named = [_content(side.get("pad_token")) for side in sides]
    stored = tokenizer.padding["pad_token"] if tokenizer.padding else None
    for token in (*named, stored, "[PAD]", "<pad>"):
        if token and tokenizer.token_to_id(token) is not None:
            return token
    raise ValueError(
        f"{folder}: nothing says which token pads; add `pad_token` to "
        "tokenizer_config.json."
    )


def _content(token: str | dict[str, Any] | None) -> str | None:
    """A token's text: files hold it plain or as {"content": …}."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None
