"""A trained model as a Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import numpy as np

from cdejax.artifacts import (
    exclusive,
    explain,
    fingerprint,
    hash_files,
    jsonable,
    read_json,
    write_json,
)
from cdejax.export.card import model_card
from cdejax.export.configs import (
    contextual_config,
    encoder_config,
    modules_json,
    pooling_config,
    sentence_transformers_config,
)
from cdejax.export.dense import head_layers
from cdejax.export.tokenizer import write_tokenizer
from cdejax.models import BiEncoder, ContextualEncoder
from cdejax.models.checkpoints.registry import architecture_of
from cdejax.models.weights import to_state_dict
from cdejax.similarity import Similarity

MARKER = "cdejax.json"
"""Says that a folder is an export of ours, and of what."""
_TORCH_FILES = Path(__file__).parent / "torch"


def export_model(
    model: BiEncoder | ContextualEncoder,
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
) -> Path:
    """Writes a folder that sentence-transformers, transformers and cdejax load.

    A biencoder leaves as stock modules (Transformer, Pooling, those of its head,
    Normalize), a contextual encoder with two small files of torch code, which need
    `trust_remote_code=True`. The folder appears at once, when it is complete. What
    `cdejax.folder.read_settings` reads of a folder is written back by passing it on.

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
      metadata: for the model card: `name`, `base_model`, `data`, `recipe`,
        `evaluation`, `scores`, `license`, and whatever else is worth saying.
      default_prompt_name: the prompt of texts of which nothing is said.
      similarity_fn_name: how the vectors are to be compared.
      truncate_dim: readers keep the first values of every vector only.
      normalized: a biencoder's vectors leave with length 1.

    Returns:
      The folder.

    Raises:
      ValueError: the folder holds something else or cannot be written; prompts, length
        and tokenizer do not fit the model.
    """
    folder = Path(folder).absolute()
    described: dict[str, Any] = jsonable(metadata or {})
    _check(model, prompts, max(max_length, context_length or 0))
    _check_place(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    with exclusive(partial):
        try:
            _clear(partial)
            vocabulary = _encoders(model)[-1].config.vocab_size
            write_tokenizer(tokenizer_folder, partial, max_length, vocabulary)
            if isinstance(model, BiEncoder):
                _write_stock(model, partial, max_length)
            else:
                config = contextual_config(model, max_length, context_length, described)
                _write_contextual(model, partial, config)
            write_json(partial / "modules.json", modules_json(model, normalized))
            settings = sentence_transformers_config(
                prompts,
                isinstance(model, BiEncoder),
                default_prompt_name=default_prompt_name,
                similarity_fn_name=similarity_fn_name,
                truncate_dim=truncate_dim,
            )
            write_json(partial / "config_sentence_transformers.json", settings)
            _write_card(model, partial, prompts, max_length, described, folder.name)
            return _finish(partial, folder, type(model).__name__)
        except OSError as error:
            raise ValueError(
                f"{partial}: writing the export failed: {explain(error)}"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _encoders(model: BiEncoder | ContextualEncoder) -> list[Any]:
    if isinstance(model, BiEncoder):
        return [model.encoder]
    return [model.first.encoder, model.backbone]


def _check(
    model: BiEncoder | ContextualEncoder, prompts: Mapping[str, str], max_length: int
) -> None:
    if not {"query", "document"} <= set(prompts):
        raise ValueError(
            f"prompts has the keys {sorted(prompts)}; give `query` and `document` "
            '(an empty text "" where there is none).'
        )
    for encoder in _encoders(model):
        most = encoder.longest
        if most is not None and max_length > most:
            raise ValueError(
                f"max_length {max_length}: the encoder has {most} learned positions; "
                f"give {most} or less."
            )


def _check_place(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file; give another folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise ValueError(
            f"{folder}: is not empty and no export of cdejax; give another folder."
        )


def _clear(folder: Path) -> None:
    """Removes what a killed export left, but the lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


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


def _write_contextual(
    model: ContextualEncoder, folder: Path, config: Mapping[str, Any]
) -> None:
    """The files of a contextual encoder, in the published layout."""
    write_json(folder / "config.json", config)
    _save(folder / "model.safetensors", to_state_dict(model))
    write_json(folder / "sentence_bert_config.json", {})
    for file in sorted(_TORCH_FILES.glob("*.py")):
        shutil.copyfile(file, folder / file.name)


def _write_card(
    model: BiEncoder | ContextualEncoder,
    folder: Path,
    prompts: Mapping[str, str],
    max_length: int,
    metadata: Mapping[str, Any],
    name: str,
) -> None:
    stock = isinstance(model, BiEncoder)
    card = model_card(
        name,
        prompts=prompts,
        max_length=max_length,
        context_size=None if stock else model.config.context_size,
        metadata=metadata,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _save(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
    save_file(arrays, file, metadata={"format": "pt"})


def _finish(partial: Path, folder: Path, kind: str) -> Path:
    """Marks the complete folder and moves it to its place."""
    content = {
        path.relative_to(partial).as_posix(): hash_files(path)
        for path in sorted(partial.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
    key = fingerprint(content)
    marker = {"kind": kind, "fingerprint": key, "version": packages.version("cdejax")}
    write_json(partial / MARKER, marker)
    if folder.is_dir() and any(folder.iterdir()):
        _check_same(folder, key, content)
        return folder
    os.replace(partial, folder)  # locked until now: another run cannot clear it
    (folder / ".lock").unlink()
    return folder


def _check_same(folder: Path, key: str, content: Mapping[str, str]) -> None:
    held = read_json(folder / MARKER)
    found = held.get("fingerprint") if isinstance(held, dict) else None
    if found != key:
        raise ValueError(
            f"{folder}: holds the export of another model or of other settings "
            f"(fingerprint {found}, this one is {key}). "
            "Remove it or give another folder."
        )
    if gone := [name for name in content if not (folder / name).is_file()]:
        raise ValueError(
            f"{folder}: {', '.join(gone)} was removed from the export. Remove the "
            "folder to export again."
        )
