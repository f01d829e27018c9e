"""What the registry knows of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdejax.models.checkpoints.config import Raw
from cdejax.models.checkpoints.table import Table, Tensors
from cdejax.models.encoder import Encoder


@dataclass(frozen=True)
class Architecture:
    """An encoder, how its `config.json` reads and what its weights are called."""

    model_types: tuple[str, ...]
    """`model_type` in config.json; the first is the one that we write."""
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
