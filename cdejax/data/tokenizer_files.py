"""The combined settings of a folder's tokenizer files, resolved as by transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from cdejax.folders.keys import check_keys
from cdejax.folders.module_settings import arguments, module_settings
from cdejax.folders.reading import is_file, read_json_if_there
from cdejax.folders.tokenizer_keys import TOKENIZER

Token = str | AddedToken
"""A token's text, or the token with its flags."""
NAMED: tuple[str, ...] = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token"),
    *("cls_token", "mask_token"),
)
"""Named special tokens, in the order in which they are added."""
CONFIG = "tokenizer_config.json"
STORED, VOCABULARY = "tokenizer.json", "vocab.txt"
_OLDER = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
          "tokenizer.model", "spm.model", "tekken.json")  # fmt: skip
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_SAID = {bool: "true or false", str: "a text", list: "a list", dict: "an object",
         int: "a whole number"}  # fmt: skip


@dataclass
class TokenizerFiles:
    """The content of a folder's tokenizer files."""

    folder: Path
    settings: dict[str, Any]
    """Content of tokenizer_config.json, as changed by its side files and arguments."""
    stored: dict[str, Any] | None
    """Content of tokenizer.json."""
    encoder: dict[str, Any]
    """Content of config.json."""
    added: dict[int, AddedToken] = field(default_factory=dict)
    """Added tokens, by the id given in a file."""
    lowered: bool = False
    """Whether to lower-case before any other step."""

    @property
    def source(self) -> str:
        """The settings file, for error messages."""
        return str(self.folder / CONFIG)

    def get(self, key: str, default: Any) -> Any:
        """A setting of the default's type, or the default if it is absent."""
        value = self.settings.get(key, default)
        fits = isinstance(value, type(default))
        if not fits or isinstance(value, bool) != isinstance(default, bool):
            said = _SAID[type(default)]
            raise ValueError(f"{self.source}: {key} is {value!r:.60}, not {said}")
        return value

    def token(self, key: str, default: str | None = None) -> Token | None:
        """A named special token, with its flags from the added tokens."""
        value = self.settings.get(key, default)
        value = as_token(value, f"{self.source}: {key}") if value is not None else None
        flagged = {str(token.content): token for token in self.added.values()}
        return flagged.get(content(value), value) if value is not None else None

    @property
    def extra(self) -> list[Token] | None:
        """Special tokens without a name; None if no file lists any."""
        value = self.settings.get(next((n for n in _EXTRA if n in self.settings), ""))
        if value is None or isinstance(value, dict):  # then they have names
            return None
        if not isinstance(value, list):
            raise ValueError(
                f"{self.source}: {_EXTRA[0]} is {value!r:.60}, not a list of tokens"
            )
        return [as_token(token, f"{self.source}: {_EXTRA[0]}") for token in value]

    @property
    def other(self) -> dict[str, Token]:
        """Special tokens under model-specific names."""
        own = {
            key: value
            for key, value in self.settings.items()
            if key.endswith("_token") and key not in NAMED and isinstance(value, str)
        }
        for key in (_EXTRA[0], "model_specific_special_tokens"):
            own |= value if isinstance(value := self.settings.get(key), dict) else {}
        return {k: as_token(v, f"{self.source}: {k}") for k, v in own.items()}


def read_files(folder: Path) -> TokenizerFiles:
    """Reads the tokenizer's files of a folder.

    Raises:
      ValueError: there is no file with a vocabulary, or a file is damaged or has a
        rejected key.
    """
    if not any(is_file(folder / name) for name in (STORED, VOCABULARY)):
        raise ValueError(_missing(folder))
    settings = read_json_if_there(folder / CONFIG)
    given = arguments(folder, "tokenizer")
    check_keys(settings, TOKENIZER, str(folder / CONFIG))
    check_keys(given, TOKENIZER, f"{folder}: arguments of the tokenizer")
    if ends := sorted(
        {"add_bos_token", "add_eos_token"} & {k for k in given if given[k]}
    ):
        raise ValueError(
            f"{folder}: arguments of the tokenizer: {ends[0]} is {given[ends[0]]!r}, "
            "which rebuilds what stands around a text; save the tokenizer again with it"
        )
    stored = read_json_if_there(folder / STORED) if is_file(folder / STORED) else None
    _check_stored(stored, folder)
    merged = settings | given
    if _EXTRA[1] in merged and not merged.get(_EXTRA[0]):
        merged[_EXTRA[0]] = merged.pop(_EXTRA[1])
    lowered = module_settings(folder).get("do_lower_case")
    files = TokenizerFiles(
        folder,
        merged,
        stored,
        read_json_if_there(folder / "config.json"),
        lowered=bool(lowered),
    )
    if "added_tokens_decoder" in files.settings:
        listed = files.get("added_tokens_decoder", {})
        files.added = {
            _index(i, files.source): as_token(t, f"{files.source}: added token {i}")
            for i, t in listed.items()
        }
    else:
        _read_side_files(files, given)
    return files


def _missing(folder: Path) -> str:
    older = [name for name in _OLDER if is_file(folder / name)]
    if not older:
        return (
            f"{folder}: no tokenizer there (neither tokenizer.json nor vocab.txt). "
            "Copy the encoder's tokenizer files into the folder."
        )
    return (
        f"{folder}: the tokenizer is there as {', '.join(older)} only, which cdejax "
        "does not read (it reads tokenizer.json or vocab.txt). Load the folder with "
        "transformers' AutoTokenizer and save it again: that writes tokenizer.json"
    )


def _check_stored(stored: dict[str, Any] | None, folder: Path) -> None:
    kinds = {"model": dict, "added_tokens": list}
    for key, kind in kinds.items():
        value = None if stored is None else stored.get(key, kind())
        if stored is not None and not isinstance(value, kind):
            raise ValueError(
                f"{folder / STORED}: cannot read the tokenizer: {key} is "
                f"{value!r:.60}, not {_SAID[kind]}"
            )


def _read_side_files(files: TokenizerFiles, given: dict[str, Any]) -> None:
    """Reads special and added tokens from separate files, as older versions wrote."""
    special = read_json_if_there(files.folder / "special_tokens_map.json")
    where = str(files.folder / "special_tokens_map.json")
    for key, value in special.items():
        if given.get(key):
            continue
        if isinstance(value, dict) and key not in _EXTRA:
            value = as_token(value, f"{where}: {key}", special=True)
        if key == _EXTRA[0] and isinstance(value, list):
            value = [*(files.extra or ()), *value]
        files.settings[key] = value
    added = read_json_if_there(files.folder / "added_tokens.json")
    where = str(files.folder / "added_tokens.json")
    known = {content(t) for t in (*map(files.token, NAMED), *(files.extra or ())) if t}
    for text, index in added.items():
        token = {"content": text, "special": text in known}
        token["normalized"] = not token["special"]
        files.added[_index(index, where)] = as_token(token, where)
    where = str(files.folder / STORED)
    for entry in (files.stored or {}).get("added_tokens", []):
        entry = entry if isinstance(entry, dict) else {}
        token = {key: value for key, value in entry.items() if key != "id"}
        files.added[_index(entry.get("id"), where)] = as_token(token, where)


def as_token(value: Any, where: str, **flags: Any) -> Any:
    """A token's text, or the token with its flags if a file has them.

    Raises:
      ValueError: the value is neither.
    """
    if isinstance(value, (str, AddedToken)):
        return value
    try:
        fields: dict[str, Any] = {k: v for k, v in value.items() if k != "__type"}
        if isinstance(fields["content"], str):
            return AddedToken(**{**fields, **flags})
    except (AttributeError, KeyError, TypeError):
        pass
    raise ValueError(
        f"{where}: {json.dumps(value, default=str):.80} is not a token; give its text"
    )


def content(token: Token) -> str:
    """A token's text."""
    return token if isinstance(token, str) else str(token.content)


def _index(value: Any, where: str) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole or (isinstance(value, str) and value.isascii() and value.isdigit()):
        return int(value)
    raise ValueError(f"{where}: {value!r:.60} is not a token id")
