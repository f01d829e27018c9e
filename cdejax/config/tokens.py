"""Configuration of the tokenisation: prefixes and length limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdejax.config.checks import check_at_least


@dataclass(frozen=True)
class SideConfig:
    """How queries, documents or context documents are tokenised."""

    prefix: str | None = None
    """Text prepended to every text of this side (default: the prompt of the folder
    `model.encoder`, if it has one; "": none)."""
    max_length: int = 128
    """Maximum sequence length in tokens, special tokens included; truncated texts are
    counted."""
    domain_prefixes: dict[str, str] = field(default_factory=dict)
    """Prefixes of individual domains, which replace `prefix`."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_length")


@dataclass(frozen=True)
class TokensConfig:
    """Tokenisation: one pass over the texts with the encoder's own tokenizer."""

    query: SideConfig = SideConfig(max_length=64)
    """Queries."""
    document: SideConfig = SideConfig(max_length=256)
    """Documents."""
    context: SideConfig | None = None
    """Documents as the first stage reads them, if truncated at another length than
    `document` (default: at the same)."""

    def __post_init__(self) -> None:
        if self.context is None:
            return
        for name in ("prefix", "domain_prefixes"):
            ours, theirs = getattr(self.context, name), getattr(self.document, name)
            if ours not in (theirs, None):
                raise ValueError(
                    f"context: its {name} {ours!r} must be that of `document`, "
                    f"{theirs!r}: the first stage reads documents"
                )
