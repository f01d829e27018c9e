"""The description of an encoder architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdejax.models.checkpoints.config import Raw
from cdejax.models.checkpoints.table import Table, Tensors
from cdejax.models.encoder import Encoder


@dataclass(frozen=True)
class LearnedPositions:
    """A table of learned absolute positions, which limits the length of texts."""

    reserved: int = 0
    """Number of rows of the table before the row of a text's first token."""
    counts_padding: bool = True
    """Whether transformers counts positions from the left edge of the row, so that
    padding on the left shifts the text; otherwise from the first real token."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An encoder architecture.

    It holds the encoder class, the format of its `config.json`, its tensor names, and
    what tokenizers, length limits and exports depend on. Besides it, only the PyTorch
    code that ships with exports depends on `model_type`.
    """

    model_types: Mapping[str, str]
    """Each `model_type` of config.json, and the tokenizer class that transformers uses
    by default for it. Exports write the first one, unless the configuration has a
    `model_type`."""
    config: type
    """Our configuration class, with sizes under transformers' names."""
    encoder: type[Encoder]
    """Encoder class, called with (config, rngs, dtype)."""
    read: Callable[[Raw, str], Any]
    """Maps (config.json, its name for messages) to our configuration."""
    write: Callable[[Any], dict[str, Any]]
    """Maps our configuration to the config.json of transformers' native class."""
    table: Callable[[Any], Table]
    """Maps our configuration to the table of weights under transformers' names."""
    layers: tuple[str, ...]
    """Prefixes before the layer number in tensor names, in all naming schemes."""
    positions: LearnedPositions | None
    """The table of learned positions; None for rotary or relative positions."""
    torch_twin: str | None
    """The class of transformers that the PyTorch code of contextual exports
    (`cdejax/export/torch/modeling_cdejax.py`) uses; None if it does not support the
    architecture."""
    published: Callable[[Any], Table] | None = None
    """As `table`, under the names of published checkpoints if these differ."""
    is_published: Callable[[Tensors], bool] = field(default=lambda tensors: False)
    """Whether a checkpoint uses the names of `published`."""
    prefixes: tuple[str, ...] = ()
    """Prefixes that tensor names may have, such as `bert.` in a checkpoint with a
    head."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Suffixes of old tensor names and their replacements."""
    dropped: str = ""
    """Pattern of tensor names of heads and buffers, which are ignored."""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that sentence-transformers should pass to transformers' class."""
    fitted: Callable[[Any, Tensors], Any] = field(
        default=lambda config, tensors: config
    )
    """Corrects sizes in the configuration that differ from those of the weights."""
