"""What a Hugging Face folder says beside weights: prompts and length limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdejax.models.folders import read_json

_NAMES = {
    "query": ("query", "search_query"),
    "document": ("document", "search_document", "passage", "corpus"),
}
_LONGEST = 512


def transformer_folder(folder: Path) -> Path:
    """Where the first module of `modules.json` keeps its files: often `folder` itself.

    Raises:
      ValueError: `modules.json` is no list of modules.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return folder
    try:
        return folder / json.loads(path.read_text(encoding="utf-8"))[0]["path"]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path}: not a list of modules ({error!r})") from None


def read_settings(folder: Path) -> dict[str, Any]:
    """`prompts`, `max_length` and `context_length` of a folder, for `Embedder`.

    Prompts come from `config_sentence_transformers.json`, as sentence-transformers'
    `encode_query` and `encode_document` look them up. The length limit comes from
    `sentence_bert_config.json`, else `max_seq_length` of `config.json`, else the
    tokenizer's `model_max_length` up to 512 tokens, else 512; learned positions bound
    it.

    Raises:
      ValueError: a file is no JSON object, or the folder asks for lower-casing outside
        its tokenizer, which is not supported.
    """
    prompts = _read(folder / "config_sentence_transformers.json")
    inner = transformer_folder(folder)
    bert = _read(inner / "sentence_bert_config.json")
    config = _read(inner / "config.json")
    tokenizer = _read(inner / "tokenizer_config.json")
    if bert.get("do_lower_case"):
        raise ValueError(
            f"{inner}/sentence_bert_config.json: do_lower_case is not supported; "
            "lower-case in the tokenizer instead"
        )
    limit = bert.get("max_seq_length") or config.get("max_seq_length")
    limit = limit or min(tokenizer.get("model_max_length", _LONGEST), _LONGEST)
    encoder = config.get("backbone_config") or config
    if not isinstance(limit, int):
        raise ValueError(f"{folder}: the length limit is {limit!r}, no whole number")
    if encoder.get("model_type") == "bert":
        limit = min(limit, encoder.get("max_position_embeddings", limit))
    return {
        "prompts": _prompts(prompts, folder),
        "max_length": limit,
        "context_length": config.get("context_max_length"),
    }


def _prompts(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    stored = config.get("prompts") or {}
    texts = stored.values() if isinstance(stored, dict) else [stored]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{folder}/config_sentence_transformers.json: `prompts` must map names to "
            "texts"
        )
    default = stored.get(config.get("default_prompt_name") or "", "")
    return {
        kind: next((stored[name] for name in names if stored.get(name)), default)
        for kind, names in _NAMES.items()
    }


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, empty where the file is missing."""
    return read_json(path) if path.is_file() else {}
