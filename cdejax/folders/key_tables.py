"""All tables of keys by file, and as Markdown for docs/interop.md."""

from __future__ import annotations

from cdejax.folders.model_keys import (
    ENCODER,
    HEAD,
    MODEL_ARGUMENTS,
    MODULE,
    MODULES,
    POOLING,
    SENTENCE_TRANSFORMERS,
)
from cdejax.folders.tokenizer_keys import FAST_TOKENIZER, SPECIAL_TOKENS, TOKENIZER

TABLES = {
    "tokenizer_config.json": TOKENIZER,
    "special_tokens_map.json": SPECIAL_TOKENS,
    "tokenizer.json": FAST_TOKENIZER,
    "sentence_bert_config.json": MODULE,
    "sentence_bert_config.json: model_args": MODEL_ARGUMENTS,
    "config_sentence_transformers.json": SENTENCE_TRANSFORMERS,
    "modules.json": MODULES,
    "config.json": ENCODER,
    "N_Pooling/config.json": POOLING,
    "N_Dense, N_LayerNorm, N_Normalize/config.json": HEAD,
}


def markdown() -> str:
    """The tables as one table in Markdown, for docs/interop.md."""
    lines = ["| file | keys | | why |", "| --- | --- | --- | --- |"]
    for file, table in TABLES.items():
        for key in table:
            listed = ", ".join(f"`{name}`" for name in key.names)
            lines.append(f"| {file} | {listed} | {key.act} | {key.note} |")
    return "\n".join(lines) + "\n"
