"""Loads a model's weights from a checkpoint, and returns them as a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from cdejax.models.base import EmbeddingModel
from cdejax.models.checkpoints.architecture import Architecture
from cdejax.models.checkpoints.registry import architecture_of, encoder_table
from cdejax.models.checkpoints.table import Table, Tensor, Tensors
from cdejax.models.encoder import Encoder
from cdejax.models.pretrained.fit import check_fit

_WRAPPERS = (
    *("module.", "_orig_mod.", "base_model.model."),
    *("0.auto_model.", "0.model.", "auto_model."),
)


def table_of(model: Encoder | EmbeddingModel, *, published: bool = False) -> Table:
    """The table of an encoder's or model's weights, see `EmbeddingModel.table`."""
    if isinstance(model, EmbeddingModel):
        return model.table(published=published)
    return encoder_table(model, published=published)


def encoder_tensors(
    found: Architecture, tensors: Tensors, source: str = "checkpoint"
) -> dict[str, Tensor]:
    """Returns a checkpoint's encoder tensors, without prefixes, pooler and heads.

    Old names of norms (gamma, beta) become weight and bias, as in transformers.

    Raises:
      ValueError: a weight has two names, with different values.
    """
    out: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for given, tensor in strip_wrapper_prefixes(tensors).items():
        name = given
        for prefix in found.prefixes:
            name = name.removeprefix(prefix)
        for old, new in found.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        if re.fullmatch(found.dropped, name):
            continue
        if name in out and not np.array_equal(out[name], tensor, equal_nan=True):
            raise ValueError(
                f"{source}: {origin[name]} and {given} are the same weight, with "
                "different values; save the one that was trained"
            )
        out[name], origin[name] = tensor, given
    return out


def strip_wrapper_prefixes(tensors: Tensors) -> dict[str, Tensor]:
    """Removes the prefixes of wrappers that all tensor names have.

    These are the prefixes of data parallelism (`module.`), `torch.compile`
    (`_orig_mod.`), sentence-transformers (`0.auto_model.`, `0.model.`, `auto_model.`)
    and peft after a merge (`base_model.model.`), in any order.
    """
    out = dict(tensors)
    while prefix := next(
        (p for p in _WRAPPERS if out and all(n.startswith(p) for n in out)), None
    ):
        out = {name.removeprefix(prefix): tensor for name, tensor in out.items()}
    return out


def first_layers(
    found: Architecture, tensors: Tensors, layers: int
) -> dict[str, Tensor]:
    """Returns an encoder's tensors with only its first `layers` layers."""
    number = re.compile(rf"(?:{'|'.join(map(re.escape, found.layers))})\.(\d+)\.")

    def is_kept(name: str) -> bool:
        match = number.match(name)
        return match is None or int(match.group(1)) < layers

    return {name: tensor for name, tensor in tensors.items() if is_kept(name)}


def to_state_dict(model: Encoder | EmbeddingModel) -> dict[str, Tensor]:
    """Returns a model's weights as a checkpoint: float32, in PyTorch's layout.

    Encoders and biencoders have transformers' native names (a biencoder's MLP head is
    `mlp.0` and `mlp.2`); contextual encoders have the published layout of CDE.
    """
    params = _params(model)
    tensors: dict[str, Tensor] = {}
    for entry in table_of(model):
        tensors |= entry.to_tensors(np.asarray(params[entry.path][...]))
    return tensors


def load_state_dict(
    model: Encoder | EmbeddingModel, tensors: Tensors, *, source: str = "checkpoint"
) -> None:
    """Sets all of a model's parameters in place from a checkpoint.

    Tensors are converted to float32. The model may be abstract, as returned by
    `nnx.eval_shape`.

    Args:
      model: the model.
      tensors: the checkpoint, under transformers' names or published ones.
      source: the checkpoint's file, for messages.

    Raises:
      ValueError: tensors are missing, unexpected, of another shape or not floats (see
        `check_fit`).
    """
    table = table_of(model, published=_is_published(model, tensors))
    params = _params(model)
    check_fit(_shapes(table, params), tensors, source)
    update = [
        (
            _key(entry.path),
            params[entry.path].replace(jnp.asarray(entry.to_param(tensors))),
        )
        for entry in table
    ]
    nnx.update(model, nnx.from_flat_state(update))


def parameter_count(build: Callable[[], nnx.Module]) -> int:
    """Counts the parameters of the model that `build` makes; none are allocated."""
    state = nnx.state(nnx.eval_shape(build), nnx.Param)
    return sum(int(np.prod(param.shape)) for _, param in nnx.to_flat_state(state))


def _is_published(model: Encoder | EmbeddingModel, tensors: Tensors) -> bool:
    encoder = model.text_encoder if isinstance(model, EmbeddingModel) else model
    return architecture_of(encoder.config).is_published(tensors)


def _shapes(table: Table, params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of a table."""
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in table:
        expected = entry.shapes(params[entry.path].shape)
        shapes |= dict(zip(entry.names, expected, strict=True))
    return shapes


def _params(model: Encoder | EmbeddingModel) -> dict[str, Any]:
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): param for path, param in flat}


def _key(path: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))
