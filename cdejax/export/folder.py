"""A trained model as a Hugging Face folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cdejax.export.card import model_card
from cdejax.export.configs import (
    contextual_config,
    encoder_config,
    modules_json,
    pooling_config,
    sentence_transformers_config,
)
from cdejax.export.dense import head_layers
from cdejax.export.publish import CARD, publish
from cdejax.export.tokenizer import write_tokenizer
from cdejax.models import BiEncoder, EmbeddingModel, Model
from cdejax.models.checkpoints.registry import (
    ARCHITECTURES,
    architecture_of,
    find_architecture,
)
from cdejax.models.checkpoints.table import Tensors
from cdejax.models.pretrained.weights import to_state_dict
from cdejax.models.similarity import Similarity
from cdejax.storage.artifacts import jsonable, write_json

CODE = ("modeling_cdejax", "pooling_cdejax", "sentence_transformers_cdejax",
        "weights_cdejax")  # fmt: skip
"""Torch files of a contextual export."""
_TORCH_FILES = Path(__file__).parent / "torch"


def export_model(
    model: Model,
    tokenizer_folder: str | Path,
    folder: str | Path,
    *,
    prompts: Mapping[str, str],
    max_length: int,
    context_length: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    default_prompt_name: str | None = None,
    similarity_fn_name: Similarity = "cosine",
    truncate_dim: int | None = None,
    normalized: bool = True,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Writes a folder that sentence-transformers, transformers and cdejax load.

    A biencoder leaves as stock modules (Transformer, Pooling, those of its head,
    Normalize), a contextual encoder with two small files of torch code, which need
    `trust_remote_code=True`. The folder appears at once, when it is complete. What
    `read_settings` (`cdejax.models.pretrained.settings`) reads of a folder is written
    back by passing it on.

    Args:
      model: what was trained.
      tokenizer_folder: the tokenizer that it was trained with.
      folder: where to write; it must not exist, be empty, or hold this same export
        already (then nothing is done).
      prompts: text before every `query` and every `document` (both keys, may be ""),
        and before texts of other kinds.
      max_length: longest text in tokens; what is longer is cut.
      context_length: the same for the first stage of a contextual encoder (default:
        `max_length`).
      metadata: for the model card, see `model_card`.
      default_prompt_name: the prompt of texts of which nothing is said.
      similarity_fn_name: how the vectors are to be compared.
      truncate_dim: readers keep the first values of every vector only.
      normalized: a biencoder's vectors leave with length 1.
      check: called with the complete folder before it appears, to raise where it is no
        good: see `cdejax.export.check.check_export`.

    Returns:
      The folder.

    Raises:
      ValueError: the folder holds something else or cannot be written; prompts, length
        and tokenizer do not fit the model.
    """
    if model.kind == "baked":
        raise ValueError("a context is baked in: `export_baked` writes such a model")
    described: dict[str, Any] = jsonable(metadata or {})
    check_settings(model, prompts, max(max_length, context_length or 0))

    def write(partial: Path) -> None:
        vocabulary = model.text_encoder.config.vocab_size
        write_tokenizer(tokenizer_folder, partial, max_length, vocabulary)
        if model.kind == "biencoder":
            _write_stock(model, partial, max_length)
        else:
            config = contextual_config(model, max_length, context_length, described)
            write_contextual(partial, config, to_state_dict(model), CODE)
        write_json(partial / "modules.json", modules_json(model, normalized))
        settings = sentence_transformers_config(
            prompts,
            stock=model.kind == "biencoder",
            default_prompt_name=default_prompt_name,
            similarity_fn_name=similarity_fn_name,
            truncate_dim=truncate_dim,
        )
        write_json(partial / "config_sentence_transformers.json", settings)
        card = model_card(
            Path(folder).name,
            prompts=prompts,
            max_length=max_length,
            context_size=model.context_size or None,
            metadata=described,
        )
        (partial / CARD).write_text(card, encoding="utf-8")

    return publish(folder, type(model).__name__, described, write, check)


def check_settings(
    model: EmbeddingModel, prompts: Mapping[str, str], max_length: int
) -> None:
    """ValueError where prompts are missing or texts may be longer than positions."""
    if not {"query", "document"} <= set(prompts):
        raise ValueError(
            f"prompts has the keys {sorted(prompts)}; give `query` and `document` "
            '(an empty text "" where there is none).'
        )
    for encoder in model.encoders.values():
        most = encoder.longest
        if most is not None and max_length > most:
            raise ValueError(
                f"max_length {max_length}: the encoder has {most} learned positions; "
                f"give {most} or less."
            )


def _write_stock(model: BiEncoder, folder: Path, max_length: int) -> None:
    """The files of stock sentence-transformers modules."""
    write_json(folder / "config.json", encoder_config(model))
    _save(folder / "model.safetensors", to_state_dict(model.encoder))
    settings: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": False}
    if arguments := architecture_of(model.encoder.config).model_args:
        settings["model_args"] = dict(arguments)
    write_json(folder / "sentence_bert_config.json", settings)
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", pooling_config(model))
    for index, layer in enumerate(head_layers(model), start=2):
        place = folder / f"{index}_{layer.kind}"
        place.mkdir()
        write_json(place / "config.json", layer.config)
        if layer.tensors:
            _save(place / "model.safetensors", layer.tensors)


def write_contextual(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    code: Iterable[str],
) -> None:
    """The files of a contextual encoder, in the published layout, with its code.

    Raises:
      ValueError: the code has no such encoder.
    """
    kind = config["backbone_config"]["model_type"]
    found = find_architecture(kind)
    if found is None or found.torch_twin is None:
        known = [name for a in ARCHITECTURES if a.torch_twin for name in a.model_types]
        raise ValueError(
            f"a contextual model on {kind}: its torch code knows "
            f"{', '.join(known)} only; start from one of these."
        )
    write_json(folder / "config.json", config)
    _save(folder / "model.safetensors", tensors)
    write_json(folder / "sentence_bert_config.json", {})
    for name in code:
        shutil.copyfile(_TORCH_FILES / f"{name}.py", folder / f"{name}.py")


def _save(file: Path, tensors: Tensors) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
    try:
        save_file(arrays, file, metadata={"format": "pt"})
    except SafetensorError as error:  # it has no kind of its own for a full disk
        raise OSError(f"{file}: {error}") from None
