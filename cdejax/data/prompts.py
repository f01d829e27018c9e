"""Prefixes of texts: those of a recipe, and those inherited from a model's folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from cdejax.config import Config, SideConfig, TokensConfig, VectorsConfig
from cdejax.folders.paths import resolve_folder
from cdejax.models.pretrained.settings import read_prompts


def tokens_of(config: Config) -> TokensConfig:
    """The recipe's `tokens`, with every unset prefix replaced by the one in use.

    That is the prompt of the folder that training starts from, if it has one. The first
    stage reads documents, so it uses their prefix.

    Raises:
      ValueError: the folder cannot be read, or `training.init_from` is an export with
        another prompt.
    """
    said, tokens = start_prompts(config), config.tokens
    _check_init(config, said)
    document = _filled(tokens.document, said["document"])
    context = tokens.context and _filled(tokens.context, document.prefix)
    return TokensConfig(_filled(tokens.query, said["query"]), document, context)


def start_prompts(config: Config) -> dict[str, str]:
    """Prompts of the folder `model.encoder`, by name."""
    return read_prompts(resolve_folder(config.model.encoder, "model.encoder"))


def surrogate_prompts(settings: VectorsConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Prompts of the folder `vectors.encoder`, and the prefixes actually used."""
    said = read_prompts(resolve_folder(settings.encoder or "", "vectors.encoder"))
    given = {"query": settings.query_prefix, "document": settings.document_prefix}
    return said, said | {side: x for side, x in given.items() if x is not None}


def _filled(side: SideConfig, prompt: str | None) -> SideConfig:
    return side if side.prefix is not None else dataclasses.replace(side, prefix=prompt)


def _check_init(config: Config, said: Mapping[str, str]) -> None:
    """Rejects an unset prefix if encoder and `training.init_from` disagree on it."""
    source = config.training.init_from
    if source is None:
        return
    folder: Path = resolve_folder(source, "training.init_from")
    if not (folder / "config.json").is_file():
        return
    theirs = read_prompts(folder)
    for name in ("query", "document"):
        unset = getattr(config.tokens, name).prefix is None
        if unset and theirs[name] != said[name]:
            raise ValueError(
                f"tokens.{name}.prefix: {source} (training.init_from) has the prompt "
                f"{theirs[name]!r}, {config.model.encoder} (model.encoder) has "
                f"{said[name]!r}; set the one to train with"
            )
