"""Tokenisation of texts with the encoder's own tokenizer."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

from cdejax.data.given_texts import check_texts
from cdejax.folders.reading import is_file, is_folder

if TYPE_CHECKING:
    import tokenizers

    from cdejax.data.tokenizer_files import TokenizerFiles

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
)
"""Files that make up a tokenizer in a Hugging Face folder (if present)."""


class Tokenizer:
    """A Rust tokenizer (all cores, no fork) that never pads and truncates on request.

    A tokenizer.json may store truncation and padding (all-MiniLM-L6-v2 truncates at 128
    and pads to 128); both are switched off.

    Args:
      tokenizer: the tokenizer, which is modified in place.
      tokens: the text of each named special token (`pad_token`, `cls_token`, …).
      pad_token: the padding token.
      truncation_side: the end at which long texts are truncated, `right` or `left`.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        tokens: Mapping[str, str],
        pad_token: str,
        truncation_side: str = "right",
    ):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._tokens = {**tokens, "pad_token": pad_token}
        self.truncation_side = truncation_side
        """The end at which long texts are truncated, `right` or `left`."""
        self.pad_token = pad_token
        self.pad_id = tokenizer.get_vocab()[pad_token]
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        self.special_tokens = tokenizer.num_special_tokens_to_add(False)
        added = tokenizer.get_added_tokens_decoder().items()
        self.special_ids = frozenset(index for index, token in added if token.special)

    @functools.cached_property
    def hash(self) -> str:
        """Hash (16 hex digits) of all that determines tokens but the length limit."""
        self._tokenizer.no_truncation()
        text = self._tokenizer.to_str()
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Reads a folder's tokenizer files as transformers does.

        The tokenizer is `tokenizer.json`, or else `vocab.txt` as WordPiece, with the
        settings of the files beside it: see `cdejax.folders.keys` for every key.

        Raises:
          ValueError: neither file exists; a file cannot be read, has a rejected key or
            contradicts another; or no file names the padding token.
        """
        from cdejax.data.tokenizer_classes import build
        from cdejax.data.tokenizer_files import STORED, VOCABULARY, content, read_files

        files = read_files(_place(Path(folder)))
        broken = files.folder / (VOCABULARY if files.stored is None else STORED)
        try:
            tokenizer, named = build(files)
        except ValueError:
            raise
        except BaseException as error:  # Rust panics are not Exceptions
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise ValueError(f"{broken}: cannot read the tokenizer: {error}") from None
        check_tokenizer(tokenizer, files, str(broken))
        if files.lowered:
            _lower_first(tokenizer)
        tokenizer.encode_special_tokens = files.get("split_special_tokens", False)
        tokens = {name: content(token) for name, token in named.items()}
        return cls(
            tokenizer, tokens, _pad_token(files, tokens, tokenizer), _side(files)
        )

    def encode(
        self, texts: Sequence[str], max_length: int | None = None
    ) -> tuple[list[Int[np.ndarray, "length"]], Bool[np.ndarray, " texts"]]:
        """Token ids (int32) of every text with special tokens, and a truncation mask.

        A text longer than `max_length` tokens (special tokens included) loses text
        tokens at its end, or at its start if `truncation_side` is `left`; its special
        tokens are kept.

        Raises:
          ValueError: an item is not a string or not valid Unicode (lone surrogate),
            named by index; or `max_length` leaves no room for a text token.
        """
        texts = check_texts(texts)
        if max_length is None:
            self._tokenizer.no_truncation()
        elif max_length <= self.special_tokens:
            raise ValueError(
                f"max_length {max_length}: this tokenizer adds {self.special_tokens} "
                f"special tokens, so give {self.special_tokens + 1} or more."
            )
        else:
            self._tokenizer.enable_truncation(
                max_length, direction=self.truncation_side
            )
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        rows = [np.array(encoding.ids, np.int32) for encoding in encodings]
        cut = np.array([bool(encoding.overflowing) for encoding in encodings], bool)
        return rows, cut

    def words(
        self, rows: Sequence[Int[np.ndarray, "length"]]
    ) -> Int[np.ndarray, " texts"]:
        """Number of tokens of every row that are not special tokens."""
        known = np.zeros(self.vocab_size, bool)
        known[list(self.special_ids)] = True
        owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        tokens = np.concatenate([np.zeros(0, np.int32), *rows])
        return np.bincount(owner[~known[tokens]], minlength=len(rows))

    def save(self, folder: str | Path, max_length: int | None = None) -> None:
        """Writes tokenizer.json, and a tokenizer_config.json that loads it unchanged.

        Together they contain the combined settings of all files of the original folder,
        so every reader gets the same tokens.

        Args:
          folder: the folder to write to, created if missing.
          max_length: length at which readers truncate (and pad) by default; None for no
            limit.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {
            **self._tokens,
            "padding_side": "right",
            "truncation_side": self.truncation_side,
            "split_special_tokens": self._tokenizer.encode_special_tokens,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        self._tokenizer.no_truncation()
        if max_length is not None:
            config["model_max_length"] = max_length
            self._tokenizer.enable_truncation(
                max_length, direction=self.truncation_side
            )
            self._tokenizer.enable_padding(pad_id=self.pad_id, pad_token=self.pad_token)
        # its own `save` hides the reason why a file cannot be written
        text = self._tokenizer.to_str(pretty=max_length is None)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        for name, content in (
            (FILES[0], text),
            (FILES[1], json.dumps(config, indent=2, ensure_ascii=False) + "\n"),
            (FILES[2], json.dumps(self._tokens, indent=2, ensure_ascii=False) + "\n"),
        ):
            (folder / name).write_text(content, encoding="utf-8")


def _place(folder: Path) -> Path:
    """The folder, or its `0_Transformer`, used by older sentence-transformers."""
    older = folder / "0_Transformer"
    held = any(is_file(folder / name) for name in ("tokenizer.json", "vocab.txt"))
    return older if not held and is_folder(older) else folder


def check_tokenizer(
    tokenizer: tokenizers.Tokenizer, files: TokenizerFiles, source: str
) -> None:
    """Rejects a tokenizer that fails on some texts or differs from its files.

    Raises:
      ValueError: the vocabulary is empty or lacks the unknown token, a special token
        around texts is not in it, or an added token has an id other than in its file.
    """
    vocabulary = tokenizer.get_vocab()
    if not vocabulary:
        raise ValueError(f"{source}: cannot read the tokenizer: an empty vocabulary")
    stored = json.loads(tokenizer.to_str())
    _check_unknown(stored["model"], source)
    for index, token in sorted(files.added.items()):
        if (found := tokenizer.token_to_id(token.content)) != index:
            raise ValueError(
                f"{files.folder}: the added token {token.content!r} has id {index} by "
                f"its file, but gets id {found}, the next that is free: ids of added "
                "tokens must go on where the vocabulary ends, without gaps"
            )
    _check_ends(stored.get("post_processor"), set(vocabulary.values()), source)
    names = files.get("model_input_names", ["input_ids", "attention_mask"])
    if not {"input_ids", "attention_mask"} <= set(map(str, names)):
        raise ValueError(
            f"{files.source}: model_input_names is {names!r}; it must hold input_ids "
            "and attention_mask"
        )
    if "token_type_ids" in names and any(tokenizer.encode("a").type_ids):
        raise ValueError(
            f"{source}: post_processor gives texts a token type other than 0, which "
            "is not computed; write type_id 0 for a single text"
        )


def _check_unknown(model: dict[str, Any], source: str) -> None:
    """Rejects a model whose unknown token is not in its vocabulary."""
    kind, vocabulary = model["type"], model["vocab"]
    if kind == "Unigram":
        key, known = "unk_id", model["unk_id"] is not None or model["byte_fallback"]
    else:
        key = "unk_token"
        known = model[key] in vocabulary or (kind == "BPE" and model[key] is None)
    if not known:
        raise ValueError(
            f"{source}: {key} is {model[key]!r}, which the vocabulary does not have: "
            "texts with unknown words could not be read; name the token that it has"
        )


def _check_ends(
    post_processor: dict[str, Any] | None, ids: set[int], source: str
) -> None:
    """Rejects special tokens around texts that are not in the vocabulary."""
    step = post_processor or {}
    for inner in step.get("processors", []):
        _check_ends(inner, ids, source)
    listed = step.get("special_tokens") or {}
    used = {piece["SpecialToken"]["id"] for piece in step.get("single") or []
            if "SpecialToken" in piece}  # fmt: skip
    found = {name: listed[name]["ids"] if name in listed else [] for name in used}
    found |= {step[name][0]: [step[name][1]] for name in ("sep", "cls") if name in step}
    unknown = [name for name, own in found.items() if not own or set(own) - ids]
    if unknown:
        raise ValueError(
            f"{source}: post_processor puts {unknown[0]!r} around texts, which is no "
            "token of the vocabulary; add it, or take it out"
        )


def _side(files: TokenizerFiles) -> str:
    """The truncation side; rejects padding that would change the vectors."""
    from cdejax.models.checkpoints.registry import learned_positions

    sides = {"truncation_side": "right", "padding_side": "right"}
    for key, stored in (("truncation_side", "truncation"), ("padding_side", "padding")):
        section = (files.stored or {}).get(stored)
        section = section if isinstance(section, dict) else {}
        usual = str(section.get("direction", "right")).lower()
        sides[key] = str(files.settings.get(key, usual))
        if sides[key] not in ("right", "left"):
            raise ValueError(
                f"{files.source}: {key} is {sides[key]!r}, not 'right' or 'left'"
            )
    kind = files.encoder.get("model_type")
    learned = learned_positions(kind)
    counts = learned is not None and learned.counts_padding
    if sides["padding_side"] == "left" and counts:
        raise ValueError(
            f"{files.source}: padding_side is 'left', with which the learned positions "
            f"of {kind} count padding, so that vectors depend on the other texts of a "
            "batch; write 'right'"
        )
    return sides["truncation_side"]


def _lower_first(tokenizer: tokenizers.Tokenizer) -> None:
    """Lower-cases before any other step, as sentence-transformers' `do_lower_case`."""
    from tokenizers import normalizers

    old = tokenizer.normalizer
    one = not isinstance(old, normalizers.Sequence)
    parts: list[Any] = [old] if one else [old[i] for i in range(len(old))]
    parts = [part for part in parts if part is not None]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def _pad_token(
    files: TokenizerFiles, tokens: Mapping[str, str], tokenizer: tokenizers.Tokenizer
) -> str:
    """The padding token that the folder's files name, or else a conventional one."""
    for token in (tokens.get("pad_token"), "[PAD]", "<pad>"):
        if token and tokenizer.token_to_id(token) is not None:
            return token
    raise ValueError(
        f"{files.folder}: nothing says which token pads; add `pad_token` to "
        "tokenizer_config.json."
    )
