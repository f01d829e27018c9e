"""What a Hugging Face folder says beside weights: prompts, limits, similarity."""

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
_UNLIMITED = 10**6  # tokenizers without a limit say 10**30
_log = logging.getLogger(__name__)


def transformer_folder(folder: Path) -> Path:
    """Where the first module of `modules.json` keeps its files: often `folder` itself.

    Raises:
      ValueError: `modules.json` is no list of modules.
    """
    return next((place for _, place in list_modules(folder)), folder)


def read_settings(folder: Path) -> dict[str, Any]:
    """A folder's settings, as `Embedder` and `export_model` take them.

    `prompts` are all of `config_sentence_transformers.json`; `query` and `document`
    are added as sentence-transformers' `encode_query` and `encode_document` look them
    up (`search_query`, and `search_document`, `passage` or `corpus` stand in for a name
    that is not there; else the prompt is ""). `default_prompt_name`,
    `similarity_fn_name` (default: `cosine`) and `truncate_dim` come from the same file.
    `normalized` says whether the last module is Normalize.

    `max_length` comes from `sentence_bert_config.json`, else `max_seq_length` of
    `config.json`; else it is the smaller of the tokenizer's `model_max_length` and the
    encoder's positions, as in sentence-transformers, or 512 if neither is known.
    Learned positions bound it; where a stated limit is above them, a warning says so.
    `context_length` is that of a contextual encoder's first stage.

    Raises:
      ValueError: a file is no JSON object, or a setting has no meaning.
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
    """A folder's prompts by name, `query` and `document` among them: see above.

    Raises:
      ValueError: the file that holds them is no JSON object, or they are no texts.
    """
    path = folder / _SETTINGS
    return _prompts(read_json_if_there(path), str(path))


def _refuse_chats(folder: Path) -> None:
    """Without modules, sentence-transformers puts every text into a chat template."""
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
    """The longest text, in tokens."""
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
    """Says, once for each folder, that texts end sooner than a file says."""
    _log.warning(
        "%s: max_seq_length is %s, but the encoder has learned %s positions: texts "
        "are cut to %s tokens",
        source,
        limit,
        most,
        most,
    )


def _positions(config: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Positions that the encoder names, None for any number; whether it learned them.

    Where one of the keys has the wrong type, the model refuses it.
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
