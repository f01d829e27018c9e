"""The token store: all texts of a pairs artefact, tokenised once."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from cdejax.config import Config, SideConfig, TokensConfig
from cdejax.data.pairs import Pairs
from cdejax.data.prompts import tokens_of
from cdejax.data.ragged import Ragged, RaggedWriter
from cdejax.data.tokenizer import Tokenizer
from cdejax.folders.paths import resolve_folder
from cdejax.folders.reading import files_read
from cdejax.runtime.progress import progress
from cdejax.storage import artifacts

BLOCK = 2048
"""Number of texts tokenised, written and flushed at once."""
_INFO, _CUT, _TOKENIZER = "tokens.json", "truncated.bin", "tokenizer"
_TRUNCATED, _WORDLESS = 1, 2
"""Bit flags of a row's byte in `truncated.bin`."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tokens:
    """Token rows aligned with the rows of the pairs artefact they were made from."""

    queries: Ragged
    documents: Ragged
    context: Ragged
    """Documents as read by the first stage."""
    pad_id: int
    vocab_size: int
    tokenizer_folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Tokens:
        """Memory-maps a finished tokens artefact; ValueError if it is not one."""
        folder = Path(folder)
        artifacts.read_manifest(folder)
        info = artifacts.read_json(folder / _INFO)
        documents = Ragged.open(folder / "documents")
        own = (folder / "context").is_dir()
        return cls(
            queries=Ragged.open(folder / "queries"),
            documents=documents,
            context=Ragged.open(folder / "context") if own else documents,
            pad_id=info["pad_id"],
            vocab_size=info["vocab_size"],
            tokenizer_folder=folder / _TOKENIZER,
        )


def tokens_stage(config: Config, root: str | Path, pairs_folder: str | Path) -> Path:
    """Tokenises a pairs artefact with the tokenizer of `config.model.encoder`.

    A run that was killed resumes where it stopped. The manifest has counts per side:
    rows, tokens, truncated texts, texts of special tokens only, longest and mean
    length.

    Raises:
      ValueError: there is no tokenizer, a prefix is for an unknown domain, or a length
        limit leaves no room for text.
    """
    encoder = resolve_folder(config.model.encoder, "model.encoder")
    tokens = tokens_of(config)
    spec = {
        "tokens": tokens,
        "tokenizer": files_read(Tokenizer.load, encoder),
        "pairs": artifacts.artifact_fingerprint(pairs_folder),
    }
    pairs = Pairs.open(pairs_folder)
    return artifacts.run_stage(
        root,
        "tokens",
        spec,
        lambda folder: build_tokens(pairs, Tokenizer.load(encoder), tokens, folder),
        resumable=True,
    )


def build_tokens(
    pairs: Pairs, tokenizer: Tokenizer, config: TokensConfig, folder: Path
) -> dict[str, Any]:
    """Writes the token rows of all sides into `folder`; returns counts per side.

    An unset prefix means no prefix.
    """
    query = (pairs.queries, pairs.query_domain)
    document = (pairs.documents, pairs.document_domain)
    sides = {
        "queries": ("query", config.query, *query),
        "documents": ("document", config.document, *document),
    }
    if config.context is not None:
        sides["context"] = ("context", config.context, *document)
    check_prefixes(config, pairs.domains)
    for field, side, _, _ in sides.values():
        _check_side(field, side, tokenizer)
    tokenizer.save(folder / _TOKENIZER)
    info = {"pad_id": tokenizer.pad_id, "vocab_size": tokenizer.vocab_size}
    artifacts.write_json(folder / _INFO, info)
    counts = {}
    for name, (_, side, texts, domain) in sides.items():
        prefix = [side.domain_prefixes.get(d, side.prefix or "") for d in pairs.domains]
        prefixes = [prefix[d] for d in domain]
        counts[name] = write_tokens(
            texts, prefixes, tokenizer, side.max_length, folder / name
        )
    return counts


def write_tokens(
    texts: Sequence[str],
    prefixes: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    folder: Path,
) -> dict[str, int | float]:
    """Tokenises `prefix + text` into ragged rows, continuing after existing rows.

    Ids are uint16 if the vocabulary allows it. `truncated.bin` holds one byte per row;
    it is written before the rows, so after a kill it covers at least as many. Texts of
    special tokens only, including `[UNK]`, carry no information: they are counted, and
    their number is logged.
    """
    usual = {prefix: _words(tokenizer, prefix) for prefix in set(prefixes)}
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    with RaggedWriter(folder, dtype) as writer, open(folder / _CUT, "ab") as flags:
        flags.truncate(len(writer))
        with progress(f"tokenise {folder.name}", len(texts), len(writer)) as advance:
            for start in range(len(writer), len(texts), BLOCK):
                block = range(start, min(start + BLOCK, len(texts)))
                rows, cut = tokenizer.encode(
                    [prefixes[i] + texts[i] for i in block], max_length
                )
                least = [usual[prefixes[i]] for i in block]
                wordless = tokenizer.words(rows) <= np.array(least)
                bits = cut * _TRUNCATED + wordless * _WORDLESS
                flags.write(bits.astype(np.uint8).tobytes())
                flags.flush()
                writer.append(rows)
                advance(len(rows))
    counts = _counts(Ragged.open(folder).lengths, folder / _CUT)
    if counts["special_only"]:
        _log.warning(
            "%s: %d of %d texts hold special tokens only (unknown characters, or "
            "nothing that the tokenizer keeps); they teach nothing",
            folder.name,
            counts["special_only"],
            counts["rows"],
        )
    return counts


def _words(tokenizer: Tokenizer, prefix: str) -> int:
    """Number of tokens of a prefix that are not special tokens."""
    if not prefix:
        return 0
    return int(tokenizer.words(tokenizer.encode([prefix], None)[0])[0])


def _counts(lengths: Int[np.ndarray, "rows"], flags: Path) -> dict[str, int | float]:
    bits = np.fromfile(flags, np.uint8)
    return {
        "rows": len(lengths),
        "tokens": int(lengths.sum()),
        "truncated": int((bits & _TRUNCATED > 0).sum()),
        "special_only": int((bits & _WORDLESS > 0).sum()),
        "max_length": int(lengths.max(initial=0)),
        "mean_length": round(float(lengths.mean()), 3) if len(lengths) else 0.0,
    }


def check_prefixes(config: TokensConfig, domains: Sequence[str]) -> None:
    """Raises ValueError for a prefix of a domain that the pairs do not have."""
    for field in ("query", "document", "context"):
        side = getattr(config, field)
        for domain in {} if side is None else side.domain_prefixes:
            if domain not in domains:
                near = difflib.get_close_matches(domain, domains, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ValueError(
                    f"tokens.{field}.domain_prefixes: the pairs have no domain "
                    f"{domain!r}.{hint}"
                )


def _check_side(field: str, side: SideConfig, tokenizer: Tokenizer) -> None:
    """Raises ValueError if a side's length limit cannot be intended."""
    if side.max_length <= tokenizer.special_tokens:
        raise ValueError(
            f"tokens.{field}.max_length: {side.max_length} leaves no room for text "
            f"beside {tokenizer.special_tokens} special tokens."
        )
