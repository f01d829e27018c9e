"""Checks of texts passed by a caller: rows in order, or a ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast


def as_rows(texts: Any) -> Sequence[str]:
    """The texts as a sequence whose positions are rows; items are not checked.

    A pandas Series is read row by row, whatever its index: `series[i]` would look up a
    label.

    Raises:
      ValueError: a single text, a mapping, a set, a table or anything else without
        numbered rows.
    """
    kind = type(texts).__name__
    if isinstance(texts, (str, bytes)):
        raise ValueError("texts: one string was given, wrap it in a list")
    if hasattr(texts, "iloc") and getattr(texts, "ndim", None) == 1:
        return cast(Sequence[str], texts.tolist())
    if hasattr(texts, "iloc") or hasattr(texts, "columns"):
        raise ValueError(
            f"texts: a {kind} was given; choose the column with the texts and make it "
            'a list, for example df["text"].tolist()'
        )
    numbered = hasattr(texts, "__len__") and hasattr(texts, "__getitem__")
    if isinstance(texts, Mapping) or not numbered:
        raise ValueError(f"texts: a {kind} was given, make it a list")
    if getattr(texts, "ndim", 1) != 1:
        raise ValueError(
            f"texts: a {kind} of {texts.ndim} axes was given, make it a list"
        )
    return cast(Sequence[str], texts)


def check_texts(texts: Any) -> Sequence[str]:
    """The texts as rows; ValueError, by index, if one is not a valid string."""
    rows = as_rows(texts)
    for index, text in enumerate(rows):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise ValueError(f"texts[{index}]: a {kind} ({text!r:.60}), not a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}]: not Unicode at character {error.start} "
                f"({text[error.start]!r}, a lone surrogate); clean the text first"
            ) from None
    return rows
