"""Checks of SentencePiece character maps, which the tokenizers library trusts."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

_BLOCK = 256
"""Number of units that a byte of a character may reach from a node."""


def check_charsmap(stored: Any, source: str) -> bytes:
    """The bytes of a character map, if every text can be looked up in it.

    The format is SentencePiece's: the size of a trie in bytes (little-endian, 32 bits),
    the trie (a double array of 32-bit units, Yata et al. 2007), then the replacements,
    each UTF-8 and NUL-terminated. tokenizers aborts or panics on a damaged map.

    Args:
      stored: the map in base64, as in tokenizer.json.
      source: the file, for error messages.

    Raises:
      ValueError: not a character map, or one that leads outside the trie or the
        replacements.
    """
    try:
        content = base64.b64decode(stored, validate=True)
        (size,) = struct.unpack_from("<I", content)
    except (TypeError, ValueError, binascii.Error, struct.error):
        raise ValueError(_told(source, "is not a base64-encoded map")) from None
    trie, replacements = content[4 : 4 + size], content[4 + size :]
    if size % 4 or not size or len(trie) != size:
        said = f"says that its trie has {size} bytes, and {len(trie)} are there"
        raise ValueError(_told(source, said))
    try:
        replacements.decode()
    except UnicodeDecodeError:
        raise ValueError(_told(source, "has replacements that are no UTF-8")) from None
    bytes_ = np.frombuffer(replacements, np.uint8)
    starts = np.append((bytes_ & 0xC0) != 0x80, True)
    if not _is_sound(np.frombuffer(trie, "<u4").astype(np.int64), starts):
        raise ValueError(_told(source, "has a trie that leads out of itself"))
    return content


def _told(source: str, fault: str) -> str:
    return (
        f"{source}: cannot read the tokenizer: precompiled_charsmap {fault}; the file "
        "is damaged, copy or download it again"
    )


def _is_sound(
    trie: Int[np.ndarray, " units"], starts: Bool[np.ndarray, " places"]
) -> bool:
    """Whether every unit that a text can reach leads to another or a replacement.

    `starts` marks the positions of the replacements at which a character starts.
    """
    level = _offset(trie[:1])
    seen = np.zeros(len(trie), bool)
    bytes_ = np.arange(1, _BLOCK)
    while len(level):
        if (level | (_BLOCK - 1)).max() >= len(trie):
            return False
        reached = level[:, None] ^ bytes_
        reached = reached[(trie[reached] & 0x800000FF) == bytes_]
        reached = reached[~seen[reached]]
        seen[reached] = True
        level = reached ^ _offset(trie[reached])
        ends = level[(trie[reached] >> 8 & 1) == 1]
        if len(ends) and ends.max() >= len(trie):
            return False
        values = trie[ends] & 0x7FFFFFFF
        if len(values) and (values.max() >= len(starts) or not starts[values].all()):
            return False
    return True


def _offset(units: Int[np.ndarray, " units"]) -> Int[np.ndarray, " units"]:
    """The offset of a unit's children: 21 bits, or 8 bits shifted further."""
    return (units >> 10) << ((units & (1 << 9)) >> 6)
