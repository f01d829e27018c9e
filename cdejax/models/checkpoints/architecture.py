"""All that cdejax knows of one encoder architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdejax.models.checkpoints.config import Raw
from cdejax.models.checkpoints.table import Table, Tensors
from cdejax.models.encoder import Encoder


@dataclass(frozen=True)
class LearnedPositions:
    """A table of absolute positions, which limits the length of texts."""

    reserved: int = 0
    """Rows of the table in front of that of a text's first token."""
    counts_padding: bool = True
    """Whether transformers numbers positions from the row's left edge, so that padding
    on the left would move the text, rather than from the first real token."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An encoder, how its `config.json` reads, what its weights are called, and what
    tokenizers, limits and exports depend on. Only the PyTorch code that ships with
    exports asks for a `model_type` as well."""

    model_types: Mapping[str, str]
    """Each `model_type` of config.json (the first is the one that we write, unless the
    configuration keeps it), and the class that transformers takes for its tokenizer
    where no file names another."""
    config: type
    """Our configuration, with the sizes under transformers' names."""
    encoder: type[Encoder]
    """Takes (config, rngs, dtype)."""
    read: Callable[[Raw, str], Any]
    """(config.json, its name for messages) to our configuration."""
    write: Callable[[Any], dict[str, Any]]
    """Our configuration to the config.json of transformers' native class."""
    table: Callable[[Any], Table]
    """Our configuration to the weights' table under transformers' native names."""
    layers: tuple[str, ...]
    """What stands before the number of a layer in names of weights, in every form."""
    positions: LearnedPositions | None
    """The table of positions; None for rotary or relative positions."""
    torch_twin: str | None
    """transformers' class in the torch code of contextual exports
    (`cdejax/export/torch/modeling_cdejax.py`); None if that code lacks it."""
    published: Callable[[Any], Table] | None = None
    """The same under the names that published checkpoints use instead, if they do."""
    is_published: Callable[[Tensors], bool] = field(default=lambda tensors: False)
    """Whether a checkpoint uses those."""
    prefixes: tuple[str, ...] = ()
    """What may stand before all names: `bert.`, where a checkpoint has a head."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of old names, and what they are called now."""
    dropped: str = ""
    """Pattern of names that belong to heads and buffers, which we do not need."""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    """What sentence-transformers should pass to transformers' class."""
    fitted: Callable[[Any, Tensors], Any] = field(
        default=lambda config, tensors: config
    )
    """Corrects sizes that config.json does not tell as the weights have them."""
