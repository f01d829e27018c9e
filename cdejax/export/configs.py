"""The JSON files of an exported folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdejax.models import BiEncoder, ContextualEncoder
from cdejax.models.pretrained import config_dict

_ST = "sentence_transformers.models"
_POOLING = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
_POOLING_KEYS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens",
                 "weightedmean_tokens", "lasttoken")  # fmt: skip
# The oldest versions that the torch files were tested with.
_REQUIREMENTS = {"sentence-transformers": ">=5.7", "transformers": ">=5.17"}


def encoder_config(model: BiEncoder) -> dict[str, Any]:
    """A biencoder's `config.json`, for transformers' native class."""
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return config_dict(model) | dict.fromkeys(dropouts, 0.0)


def contextual_config(
    model: ContextualEncoder,
    max_length: int,
    context_length: int | None,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """`config.json` of a contextual encoder.

    What the model says of itself (`backbone_config`, the forward pass's switches), the
    class that torch loads it with, and the other keys of cde-small-v1 and -v2.
    """
    return {
        "architectures": ["CdejaxModel"],
        "auto_map": {
            "AutoConfig": "modeling_cdejax.CdejaxConfig",
            "AutoModel": "modeling_cdejax.CdejaxModel",
        },
        "model_type": "cdejax",
        **config_dict(model),
        "attn_implementation": None,
        "cache_dir": None,
        "config_name": None,
        "context_max_length": context_length,
        "dataset_backbone": None,
        "embedder": metadata.get("base_model"),
        "embedder_rerank": None,
        "logit_scale": metadata.get("logit_scale", 50.0),
        "max_seq_length": max_length,
        "model_revision": "main",
        "tokenizer_name": None,
        "torch_dtype": "float32",
    }


def modules_json(model: BiEncoder | ContextualEncoder) -> list[dict[str, Any]]:
    """`modules.json`: stock modules, or our own one for a contextual encoder."""
    if isinstance(model, ContextualEncoder):
        kind, name = "sentence_transformers_cdejax.Transformer", "dataset_embeddings"
        return [{"idx": 0, "name": "0", "path": "", "type": kind, "kwargs": [name]}]
    heads = [] if model.head is None else ["Dense", "Dense"]
    kinds = ["Transformer", "Pooling", *heads, "Normalize"]
    return [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"{_ST}.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]


def pooling_config(model: BiEncoder) -> dict[str, Any]:
    """`1_Pooling/config.json`, in the form that every version reads."""
    chosen = _POOLING[model.pooling]
    flags = {f"pooling_mode_{key}": key == chosen for key in _POOLING_KEYS}
    size = {"word_embedding_dimension": model.encoder.hidden_size}
    return {**size, **flags, "include_prompt": True}


def sentence_transformers_config(
    prompts: Mapping[str, str], stock: bool
) -> dict[str, Any]:
    """`config_sentence_transformers.json`: prompts, similarity, needed versions."""
    return {
        "model_type": "SentenceTransformer",
        "prompts": dict(prompts),
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
        **({} if stock else {"requirements": _REQUIREMENTS}),
    }
