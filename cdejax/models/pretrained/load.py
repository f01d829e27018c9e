"""Loads models from Hugging Face folders: safetensors only, without remote code."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import DTypeLike

from cdejax.folders.paths import resolve_folder
from cdejax.folders.reading import is_file, read_json
from cdejax.models.baked import BakedEncoder
from cdejax.models.biencoder import BiEncoder
from cdejax.models.checkpoints.config import check_value
from cdejax.models.checkpoints.registry import architecture, architecture_of
from cdejax.models.context import Context
from cdejax.models.contextual import ContextualEncoder
from cdejax.models.encoder import Encoder
from cdejax.models.kinds import Model
from cdejax.models.pretrained.contextual_config import (
    contextual_config,
    contextual_config_dict,
    encoder_config_dict,
    stage_configs,
    with_preset,
)
from cdejax.models.pretrained.files import read_config, read_tensors, weights_file
from cdejax.models.pretrained.presets import PresetName
from cdejax.models.pretrained.st_modules import read_modules
from cdejax.models.pretrained.weights import (
    encoder_tensors,
    first_layers,
    load_state_dict,
    strip_wrapper_prefixes,
)
from cdejax.models.second_stage import ContextualConfig, SecondStage

M = TypeVar("M", bound=nnx.Module)
_NULL = "second_stage_model.sequence_dropout_null_embedding"
_log = logging.getLogger(__name__)


def from_pretrained(
    folder: str | Path,
    *,
    layers: int | None = None,
    dtype: DTypeLike = jnp.float32,
    preset: PresetName | None = None,
    remat: bool = False,
    weights: bool = True,
) -> Model:
    """Loads a model from a folder; its safetensors may be sharded or 16-bit.

    Args:
      folder: a Hugging Face folder of any supported architecture, with or without
        sentence-transformers' files, or one of our exports. A folder without them is
        loaded as a biencoder with mean pooling. `package:MODULE/FOLDER` and
        `hf:OWNER/NAME` (downloaded once) are supported as well: see
        `cdejax.folders.paths.resolve_folder`.
      layers: number of layers to keep, from the first (biencoders only; default: all).
      dtype: dtype of the activations; parameters are float32.
      preset: forward pass of a published CDE checkpoint whose config.json does not
        specify it (see `presets`); keys that are in config.json take precedence.
      remat: recompute activations in the backward pass (gradient checkpointing).
      weights: whether to read the encoder's weights; otherwise its parameters stay
        abstract (`jax.ShapeDtypeStruct`), and only the headers of the files are read.

    Returns:
      A biencoder; or, for `"architecture": "transductive"`, a contextual encoder, or a
      baked encoder if the folder has a baked-in context. `kind` tells them apart.

    Raises:
      ValueError: a file is missing, damaged or of an unsafe format, the architecture is
        not supported, a value is invalid, or the weights do not fit the configuration.
    """
    folder = resolve_folder(folder)
    contextual = is_file(folder / "config.json") and (
        read_json(folder / "config.json").get("architecture") == "transductive"
    )
    if contextual:
        if layers is not None:
            raise ValueError(
                f"{folder}: `layers` is for single encoders; a contextual model is "
                "loaded whole"
            )
        return _contextual(folder, dtype, preset, remat, weights)
    if preset is not None:
        raise ValueError(f"{folder}: preset {preset!r} is for contextual models")
    return _biencoder(folder, layers, dtype, remat, weights)


def config_dict(model: Encoder | Model) -> dict[str, Any]:
    """The contents of a model's `config.json` in an export.

    For a biencoder, they describe its encoder: pooling and head are separate modules in
    sentence-transformers. For a contextual model, the exporter adds `architectures` and
    `auto_map`.
    """
    if isinstance(model, SecondStage):
        return contextual_config_dict(model)
    encoder = model.encoder if isinstance(model, BiEncoder) else model
    return encoder_config_dict(encoder.config)


def _biencoder(
    folder: Path, layers: int | None, dtype: DTypeLike, remat: bool, weights: bool
) -> BiEncoder:
    modules = read_modules(folder)
    source = str(modules.encoder / "config.json")
    raw = read_config(modules.encoder)
    found = architecture(raw, source)
    config = found.read(raw, source)
    file = str(weights_file(modules.encoder))
    tensors = read_tensors(modules.encoder, content=weights)
    tensors = encoder_tensors(found, tensors, file)
    config = found.fitted(config, tensors)
    if layers is not None:
        config = _limited(config, layers, source)
        tensors = first_layers(found, tensors, layers)

    _check_depth(config.num_hidden_layers, len(tensors), source)
    encoder = _abstract(
        lambda: make_encoder(config, nnx.Rngs(0), dtype, remat=remat), source
    )
    if weights:
        load_state_dict(encoder, tensors, source=file)
    return BiEncoder(
        encoder,
        modules.pooling,
        modules.head,
        include_prompt=modules.include_prompt,
    )


def _contextual(
    folder: Path, dtype: DTypeLike, preset: str | None, remat: bool, weights: bool
) -> ContextualEncoder | BakedEncoder:
    source = str(folder / "config.json")
    raw = with_preset(read_config(folder), preset, source)
    first, second = stage_configs(raw, source)
    tensors = strip_wrapper_prefixes(read_tensors(folder, content=weights))
    null = raw.get("null_embedding")
    null = _NULL in tensors if null is None else null
    null = check_value(null, True, "null_embedding", source)
    config = contextual_config(raw, null, source)
    _warn_of(config, str(folder))

    depth = max(first.num_hidden_layers, second.num_hidden_layers)
    _check_depth(depth, len(tensors), f"{source}: backbone_config")
    context = Context.load(folder) if raw.get("baked_context") else None

    def build() -> ContextualEncoder | BakedEncoder:
        rngs = nnx.Rngs(0)
        embedder = make_encoder(first, rngs, dtype, remat=remat)
        backbone = make_encoder(second, rngs, dtype, remat=remat)
        model = ContextualEncoder(config, embedder, backbone, rngs)
        return model if context is None else BakedEncoder(model, context.vectors)

    model = _abstract(build, source)
    if context is not None:
        tensors["second_stage_model.context"] = context.vectors
    if weights:
        load_state_dict(model, tensors, source=str(weights_file(folder)))
    return model


def _check_depth(layers: int, tensors: int, source: str) -> None:
    """Raises ValueError, before layers are built, if there are more than tensors."""
    if layers > tensors:
        raise ValueError(
            f"{source}: num_hidden_layers is {layers}, but the weights have {tensors} "
            "tensors in all; copy both from one checkpoint"
        )


def _abstract(build: Callable[[], M], source: str) -> M:
    """Builds a model with abstract parameters; error messages name the source."""
    try:
        return nnx.eval_shape(build)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


@functools.cache
def _warn_of(config: ContextualConfig, source: str) -> None:
    """Warns, once per folder, about side effects of a published forward pass."""
    if config.context_rotary == "sequence":
        _log.warning(
            "%s: embeddings depend on the order of the context, since this forward "
            "pass (context_rotary 'sequence') gives every context vector a position "
            "of its own; use the same context, in the same order, for index and "
            "queries",
            source,
        )
    if not config.null_embedding:
        _log.warning(
            "%s: the checkpoint has no null vector, since it was trained without "
            "sequence dropout; it cannot embed without a context",
            source,
        )


def make_encoder(
    config: Any,
    rngs: nnx.Rngs,
    dtype: DTypeLike = jnp.float32,
    *,
    remat: bool = False,
) -> Encoder:
    """Makes a newly initialised encoder of the configuration's architecture.

    Args:
      config: an encoder configuration, such as a `BertConfig`.
      rngs: random number generators that initialise the weights.
      dtype: dtype of the activations.
      remat: recompute activations in the backward pass (gradient checkpointing).
    """
    return architecture_of(config).encoder(config, rngs, dtype, remat=remat)


def _limited(config: Any, layers: int, source: str) -> Any:
    if not 1 <= layers <= config.num_hidden_layers:
        raise ValueError(
            f"{source}: {layers} layers asked for, but it has "
            f"{config.num_hidden_layers}"
        )
    return dataclasses.replace(config, num_hidden_layers=layers)
