"""The tokenizer files of an exported folder."""

from __future__ import annotations

from pathlib import Path

from cdejax.data.tokenizer import Tokenizer


def write_tokenizer(
    source: str | Path, folder: Path, max_length: int, vocab_size: int
) -> None:
    """Copies a tokenizer so that every reader of the folder cuts at `max_length`.

    The stored truncation and padding of tokenizer.json are set to the export's own (the
    original's may be of another time: all-MiniLM-L6-v2 cuts at 128 and pads to 128).
    The class is the generic fast one, which takes tokenizer.json as it is: classes of
    single architectures rebuild parts of it.

    Raises:
      ValueError: the tokenizer cannot be read, knows more tokens than the model, or
        `max_length` leaves no room for text.
    """
    tokenizer = Tokenizer.load(source)
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"{source}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"embeds {vocab_size}: give the tokenizer that the model was trained with."
        )
    if max_length <= tokenizer.special_tokens:
        raise ValueError(
            f"max_length {max_length}: the tokenizer adds {tokenizer.special_tokens} "
            f"special tokens; give {tokenizer.special_tokens + 1} or more."
        )
    tokenizer.save(folder, max_length)
