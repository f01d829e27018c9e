"""Configuration of the model and of the encoder that it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdejax.config.checks import check_at_least, check_share


@dataclass(frozen=True)
class ModelConfig:
    """The model and the encoder that it starts from."""

    kind: Literal["biencoder", "contextual"] = "biencoder"
    """One encoder, or the two-stage contextual encoder of CDE."""
    encoder: str = ""
    """Folder (or `package:NAME/FOLDER` of an installed package) with the encoder and
    tokenizer that training starts from."""
    layers: int | None = None
    """Number of the encoder's first layers to keep (default: all)."""
    first_stage_layers: int | None = None
    """contextual: layers to keep in the first stage (default: `layers`)."""
    pooling: (
        Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"] | None
    ) = None
    """Pooling of token states (default: the folder's setting, else `mean`). The last
    three are for biencoders only."""
    head: Literal["none", "mlp"] = "none"
    """biencoder: head applied after pooling."""
    context_size: int = 512
    """contextual: number of context documents that the second stage reads, C."""
    soft_tokens: int = 8
    """contextual: number of learned tokens between context and text."""
    sequence_dropout: float = 0.005
    """contextual: probability that a context vector is replaced by the null vector."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "layers", "first_stage_layers", "context_size")
        check_at_least(self, 1, "soft_tokens")
        check_share(self, "sequence_dropout")
