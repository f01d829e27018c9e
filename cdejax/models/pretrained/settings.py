"""Settings of a Hugging Face folder: prompts, length limits, similarity function."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from cdejax.folders.keys import check_keys
from cdejax.folders.model_keys import SENTENCE_TRANSFORMERS
from cdejax.folders.module_settings import arguments, module_settings, settings_file
from cdejax.folders.reading import is_file, list_files, read_json_if_there
from cdejax.models.checkpoints.registry import learned_positions
from cdejax.models.pretrained.st_modules import list_modules
from cdejax.models.similarity import check_similarity

_NAMES = {
    "query": ("query", "search_query"),
    "document": ("document", "search_document", "passage", "corpus"),
}
_SETTINGS = "config_sentence_transformers.json"
_LONGEST = 512
_UNLIMITED = 10**6  # tokenizers without a limit have 10**30
_log = logging.getLogger(__name__)


def transformer_folder(folder: Path) -> Path:
    """Folder of the first module in `modules.json`, which is often `folder` itself.

    Raises:
      ValueError: `modules.json` is not a list of modules.
    """
    return next((place for _, place in list_modules(folder)), folder)


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads a folder's settings, as `Embedder` and `export_model` take them.

    `prompts` are those of `config_sentence_transformers.json`. `query` and `document`
    are added as sentence-transformers' `encode_query` and `encode_document` look them
    up: a missing `query` is `search_query`; a missing `document` is `search_document`,
    `passage` or `corpus`; otherwise the prompt is "". `default_prompt_name`,
    `similarity_fn_name` (default: `cosine`) and `truncate_dim` come from the same file.
    `normalized` is whether the last module is Normalize.

    `max_length` comes from `sentence_bert_config.json`, or else from `max_seq_length`
    in `config.json`. Otherwise it is the smaller of the tokenizer's `model_max_length`
    and the encoder's number of positions, as in sentence-transformers, or 512 if
    neither is known. It is at most the number of learned positions; a warning is logged
    if a configured limit is larger. `context_length` is the maximum length of a
    contextual encoder's context documents.

    Raises:
      ValueError: a file is not a JSON object, or a setting is invalid.
    """
    inner = transformer_folder(folder)
    settings = read_json_if_there(folder / _SETTINGS)
    config = read_json_if_there(inner / "config.json")
    source = str(folder / _SETTINGS)
    check_keys(settings, SENTENCE_TRANSFORMERS, source)
    _refuse_chats(folder)
    prompts = _prompts(settings, source)
    default = settings.get("default_prompt_name")
    if default is not None and default not in list(prompts):
        raise ValueError(
            f"{source}: default_prompt_name {default!r} is none of the prompts "
            f"{sorted(prompts)}"
        )
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "max_length": _limit(inner, config),
        "context_length": _size(config, "context_max_length", inner / "config.json"),
        "similarity_fn_name": check_similarity(
            settings.get("similarity_fn_name") or "cosine", source
        ),
        "truncate_dim": _size(settings, "truncate_dim", folder / _SETTINGS),
        "normalized": [kind for kind, _ in list_modules(folder)][-1:] == ["Normalize"],
    }


def read_prompts(folder: Path) -> dict[str, str]:
    """Reads a folder's prompts by name, including `query` and `document`.

    See `read_settings`.

    Raises:
      ValueError: the file is not a JSON object, or a prompt is not a string.
    """
    path = folder / _SETTINGS
    return _prompts(read_json_if_there(path), str(path))


def _refuse_chats(folder: Path) -> None:
    """Raises ValueError for a chat template in a folder without modules.

    sentence-transformers would format every text with it.
    """
    if list_modules(folder):
        return
    templates = [
        *(p for p in (folder / "chat_template.jinja",) if is_file(p)),
        *list_files(folder / "additional_chat_templates", "*.jinja"),
    ]
    config = folder / "tokenizer_config.json"
    if not templates and read_json_if_there(config).get("chat_template"):
        templates = [config]
    if templates:
        raise ValueError(
            f"{templates[0]}: a chat template in a folder without modules.json, into "
            "which sentence-transformers puts every text; remove it, or add "
            "modules.json (Transformer, Pooling)"
        )


def _limit(inner: Path, config: Mapping[str, Any]) -> int:
    """Maximum length of a text, in tokens."""
    source = settings_file(inner) or inner / "config.json"
    tokenizer = read_json_if_there(inner / "tokenizer_config.json") | arguments(
        inner, "tokenizer"
    )
    limit = arguments(inner, "tokenizer").get("model_max_length")
    if limit is None:
        limit = module_settings(inner).get("max_seq_length")
    if limit is None:
        source = inner / "config.json"
        limit = config.get("max_seq_length")
    most, learned = _positions(config)
    if limit is None:
        limit = tokenizer.get("model_max_length", tokenizer.get("max_len"))
        endless = isinstance(limit, int | float) and limit > _UNLIMITED
        limit = None if endless else limit
        known = [value for value in (limit, most) if value is not None]
        sizes = all(_is_size(value) for value in known)
        limit = (min(known) if sizes else limit) if known else _LONGEST
    if not _is_size(limit):
        raise ValueError(
            f"{inner}: the length limit is {limit!r}, no whole number from 1 on"
        )
    if most is None or not learned or limit <= most:
        return limit
    _warn_of_limit(source, limit, most)
    return most


@functools.cache
def _warn_of_limit(source: Path, limit: int, most: int) -> None:
    """Warns, once per folder, that texts are truncated below the configured limit."""
    _log.warning(
        "%s: max_seq_length is %s, but the encoder has learned %s positions: texts "
        "are cut to %s tokens",
        source,
        limit,
        most,
        most,
    )


def _positions(config: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Number of positions (None if unlimited), and whether they are learned.

    Values of the wrong type are ignored here; loading the model refuses them.
    """
    encoder = config.get("backbone_config")
    encoder = encoder if isinstance(encoder, dict) else config
    most = encoder.get("max_position_embeddings", encoder.get("n_positions"))
    learned = learned_positions(encoder.get("model_type"))
    reserved = 0 if learned is None else learned.reserved
    return (most - reserved if _is_size(most) else None), learned is not None


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _size(raw: Mapping[str, Any], key: str, source: Path) -> int | None:
    value = raw.get(key)
    if value is not None and not _is_size(value):
        raise ValueError(f"{source}: {key} {value!r} is no size; 1 or more")
    return value


def _prompts(settings: Mapping[str, Any], source: str) -> dict[str, str]:
    stored = settings.get("prompts") or {}
    valid = isinstance(stored, dict)
    if not valid or not all(isinstance(text, str) for text in stored.values()):
        raise ValueError(f"{source}: `prompts` must map names to texts")
    sides = {
        kind: next((stored[name] for name in names if name in stored), "")
        for kind, names in _NAMES.items()
    }
    return sides | stored
