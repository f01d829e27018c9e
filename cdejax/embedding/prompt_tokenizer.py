"""Tokenisation of texts with the prompt of their kind."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from cdejax.data.ragged import Ragged
from cdejax.data.tokenizer import Tokenizer

_LOCK = threading.Lock()
"""One call at a time: a tokenizer stores the length at which it truncates."""


@dataclass(frozen=True)
class PromptTokenizer:
    """A tokenizer with a prompt and a length limit."""

    tokenizer: Tokenizer
    prompt: str
    """Prepended to every text ("": none)."""
    max_length: int
    """Maximum length of a text in tokens, prompt and special tokens included."""

    def tokenize(self, texts: Sequence[str]) -> tuple[Ragged, int]:
        """Token ids of texts, and how many texts were truncated."""
        whole = [self.prompt + text for text in texts] if self.prompt else texts
        with _LOCK:
            rows, cut = self.tokenizer.encode(whole, self.max_length)
        return Ragged.from_rows(rows), int(cut.sum())

    def prompt_length(self) -> Int[np.ndarray, ""] | None:
        """Number of the prompt's tokens, as sentence-transformers counts them.

        Those of the prompt alone with its special tokens, but for one at the end. None
        without a prompt.
        """
        if not self.prompt:
            return None
        with _LOCK:
            (row,), _ = self.tokenizer.encode([self.prompt], self.max_length)
        return np.array(len(row) - (int(row[-1]) in self.tokenizer.special_ids))


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """`tokenizer.hash`, which no tokenisation in another thread may disturb."""
    with _LOCK:
        return tokenizer.hash
