"""The JSON files of an exported folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdejax.export.dense import head_layers
from cdejax.models import (
    BakedEncoder,
    BiEncoder,
    ContextualEncoder,
    TrainableModel,
    config_dict,
)
from cdejax.models.pretrained.st_modules import FLAGS, MODES

_ST = "sentence_transformers.models"
# The oldest versions that the torch files were tested with.
_REQUIREMENTS = {"sentence-transformers": ">=5.7", "transformers": ">=5.17"}


def encoder_config(model: BiEncoder) -> dict[str, Any]:
    """A biencoder's `config.json`, for transformers' native class."""
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return config_dict(model) | dict.fromkeys(dropouts, 0.0)


def contextual_config(
    model: ContextualEncoder | BakedEncoder,
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


def modules_json(
    model: TrainableModel, normalized: bool = True
) -> list[dict[str, Any]]:
    """`modules.json`: stock modules, or our own one for a contextual encoder.

    `normalized` puts Normalize at a biencoder's end.
    """
    if model.kind == "contextual":
        kind, name = "sentence_transformers_cdejax.Transformer", "dataset_embeddings"
        return [{"idx": 0, "name": "0", "path": "", "type": kind, "kwargs": [name]}]
    kinds = ["Transformer", "Pooling", *(layer.kind for layer in head_layers(model))]
    kinds += ["Normalize"] if normalized else []
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
    """`1_Pooling/config.json`, in the form that every version reads where there is one.

    Flags say nothing of order: several modes in another one need the newer form.
    """
    chosen, size = model.pooling.split("+"), model.encoder.hidden_size
    if chosen == [mode for mode in FLAGS if mode in chosen]:
        flags = {flag: mode in chosen for mode, flag in FLAGS.items()}
        config = {"word_embedding_dimension": size, **flags}
    else:
        modes = [MODES[mode] for mode in chosen]
        config = {"embedding_dimension": size, "pooling_mode": modes}
    return {**config, "include_prompt": model.include_prompt}


def sentence_transformers_config(
    prompts: Mapping[str, str],
    stock: bool,
    *,
    default_prompt_name: str | None = None,
    similarity_fn_name: str = "cosine",
    truncate_dim: int | None = None,
) -> dict[str, Any]:
    """`config_sentence_transformers.json`: prompts, similarity, needed versions."""
    return {
        "model_type": "SentenceTransformer",
        "prompts": dict(prompts),
        "default_prompt_name": default_prompt_name,
        "similarity_fn_name": similarity_fn_name,
        **({} if truncate_dim is None else {"truncate_dim": truncate_dim}),
        **({} if stock else {"requirements": _REQUIREMENTS}),
    }
