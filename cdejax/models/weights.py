"""Weights: one table of (parameter, checkpoint names) per architecture, both ways.

A checkpoint is a dict of NumPy arrays under PyTorch's names and layout (linear weights
[out, in]); parameters are float32 with kernels [in, out] and one fused projection for
query, key and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from jaxtyping import Float, Shaped

from cdejax.models.bert import Bert
from cdejax.models.biencoder import BiEncoder
from cdejax.models.contextual import ContextualEncoder
from cdejax.models.encoder import Encoder

Model = Encoder | BiEncoder | ContextualEncoder
Tensors = Mapping[str, np.ndarray]
Naming = Literal["native", "hub"]
_FLOATS = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)
# What pre-training checkpoints hold beside the encoder itself.
_DROPPED = re.compile(r"(cls|pooler)\..*|embeddings\.position_ids|.*\binv_freq")


@dataclass(frozen=True)
class Entry:
    """One parameter and the checkpoint tensors that it is made of."""

    path: str
    """The parameter, by attributes from the model: `layers.0.up.kernel`."""
    names: tuple[str, ...]
    """Tensors in the checkpoint, joined along their first axis."""
    transpose: bool = False
    """The joined tensor is the parameter's transpose."""

    def shape(self, param: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of each tensor, given the parameter's."""
        first, *rest = reversed(param) if self.transpose else param
        return (first // len(self.names), *rest)

    def to_param(self, tensors: Tensors) -> Float[np.ndarray, "*shape"]:
        """The parameter, float32, from the checkpoint."""
        parts = [np.asarray(tensors[name], np.float32) for name in self.names]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.T if self.transpose else joined

    def to_tensors(self, param: Shaped[np.ndarray, "*shape"]) -> dict[str, np.ndarray]:
        """The checkpoint's tensors from the parameter."""
        joined = param.T if self.transpose else param
        parts = np.split(joined, len(self.names))
        return {
            name: np.ascontiguousarray(part)
            for name, part in zip(self.names, parts, strict=True)
        }


Table = list[Entry]


def _linear(path: str, *names: str, bias: bool = True) -> Table:
    weight = tuple(f"{name}.weight" for name in names)
    entries = [Entry(f"{path}.kernel", weight, transpose=True)]
    if bias:
        entries.append(Entry(f"{path}.bias", tuple(f"{name}.bias" for name in names)))
    return entries


def _norm(path: str, name: str) -> Table:
    scale = Entry(f"{path}.scale", (f"{name}.weight",))
    return [scale, Entry(f"{path}.bias", (f"{name}.bias",))]


def _head(path: str, name: str) -> Table:
    return _linear(f"{path}.first", f"{name}.0") + _linear(f"{path}.last", f"{name}.2")


def _inside(table: Table, path: str, name: str) -> Table:
    return [
        Entry(path + e.path, tuple(name + n for n in e.names), e.transpose)
        for e in table
    ]


def bert_table(layers: int) -> Table:
    """BERT under transformers' names (without prefix)."""
    table = [
        Entry("word", ("embeddings.word_embeddings.weight",)),
        Entry("position", ("embeddings.position_embeddings.weight",)),
        Entry("token_type", ("embeddings.token_type_embeddings.weight",)),
        *_norm("norm", "embeddings.LayerNorm"),
    ]
    layer = [
        *_linear("attention.qkv", *(f"attention.self.{n}" for n in _QKV)),
        *_linear("attention.out", "attention.output.dense"),
        *_norm("attention_norm", "attention.output.LayerNorm"),
        *_linear("up", "intermediate.dense"),
        *_linear("down", "output.dense"),
        *_norm("mlp_norm", "output.LayerNorm"),
    ]
    for i in range(layers):
        table += _inside(layer, f"layers.{i}.", f"encoder.layer.{i}.")
    return table


_QKV = ("query", "key", "value")


def nomic_bert_table(layers: int, naming: Naming) -> Table:
    """NomicBERT under transformers' (`native`) or Nomic's own (`hub`) names."""
    hub = naming == "hub"
    qkv = ("attn.Wqkv",) if hub else tuple(f"self_attn.{n}_proj" for n in "qkv")
    table = [
        Entry("word", ("embeddings.word_embeddings.weight",)),
        Entry("token_type", ("embeddings.token_type_embeddings.weight",)),
        *_norm("norm", "emb_ln" if hub else "embeddings.LayerNorm"),
    ]
    out, up, gate, down, first, second = (
        ("attn.out_proj", "mlp.fc11", "mlp.fc12", "mlp.fc2", "norm1", "norm2")
        if hub
        else (
            "self_attn.o_proj",
            "mlp.up_proj",
            "mlp.gate_proj",
            "mlp.down_proj",
            "post_attention_layernorm",
            "post_mlp_layernorm",
        )
    )
    layer = [
        *_linear("attention.qkv", *qkv, bias=False),
        *_linear("attention.out", out, bias=False),
        *_norm("attention_norm", first),
        *_linear("up", up, bias=False),
        *_linear("gate", gate, bias=False),
        *_linear("down", down, bias=False),
        *_norm("mlp_norm", second),
    ]
    stem = "encoder.layers" if hub else "layers"
    for i in range(layers):
        table += _inside(layer, f"layers.{i}.", f"{stem}.{i}.")
    return table


def table_of(model: Model, naming: Naming = "native") -> Table:
    """The table of a model.

    A contextual encoder always has the published layout of CDE (hub names); `naming`
    is that of a NomicBERT on its own or in a biencoder.
    """
    if isinstance(model, ContextualEncoder):
        return _contextual_table(model)
    if isinstance(model, BiEncoder):
        table = _inside(table_of(model.encoder, naming), "encoder.", "")
        return table + (_head("head", "mlp") if model.head is not None else [])
    layers = model.config.num_hidden_layers
    if isinstance(model, Bert):
        return bert_table(layers)
    return nomic_bert_table(layers, naming)


def _contextual_table(model: ContextualEncoder) -> Table:
    first, second = "first_stage_model.", "second_stage_model."
    backbone = table_of(model.backbone, "hub")
    return [
        *_inside(
            table_of(model.first.encoder, "hub"), "first.encoder.", f"{first}embedder."
        ),
        *_head("first.head", f"{first}mlp"),
        *_inside(backbone, "backbone.", f"{second}backbone."),
        *_head("prompt_projection", f"{second}prompt_projection"),
        *_head("output_projection", f"{second}output_projection"),
        Entry("null", (f"{second}sequence_dropout_null_embedding",)),
    ]


def naming_of(names: Iterable[str]) -> Naming:
    """Which names a NomicBERT checkpoint uses; its config's keys say nothing of it."""
    hub = any(re.search(r"attn\.Wqkv|emb_ln|mlp\.fc\d", name) for name in names)
    return "hub" if hub else "native"


def encoder_tensors(tensors: Tensors) -> dict[str, np.ndarray]:
    """A checkpoint's encoder alone: prefix, pooler and pre-training heads removed.

    Old names of norms (gamma, beta) become weight and bias, as transformers does it.
    """
    out = {}
    for name, tensor in tensors.items():
        name = re.sub(r"^(bert|nomic_bert)\.", "", name)
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        if not _DROPPED.fullmatch(name):
            out[name] = tensor
    return out


def first_layers(tensors: Tensors, layers: int) -> dict[str, np.ndarray]:
    """An encoder's tensors without the layers from number `layers` on."""
    number = re.compile(r"(?:encoder\.)?layers?\.(\d+)\.")

    def kept(name: str) -> bool:
        match = number.match(name)
        return match is None or int(match.group(1)) < layers

    return {name: tensor for name, tensor in tensors.items() if kept(name)}


def to_state_dict(model: Model) -> dict[str, np.ndarray]:
    """A model's weights as a checkpoint: float32, PyTorch's layout.

    Encoders and biencoders have transformers' native names (a biencoder's head is
    `mlp.0`, `mlp.2`), contextual encoders the published layout of CDE.
    """
    params = _params(model)
    tensors: dict[str, np.ndarray] = {}
    for entry in table_of(model):
        tensors |= entry.to_tensors(np.asarray(params[entry.path][...]))
    return tensors


def load_state_dict(
    model: Model, tensors: Tensors, *, source: str = "checkpoint"
) -> None:
    """Sets all of a model's parameters, in place, from a checkpoint.

    Half-precision tensors become float32. The model may be abstract, as from
    `nnx.eval_shape`.

    Raises:
      ValueError: names every missing, unexpected, wrong-shaped or non-float tensor.
    """
    table = table_of(model, naming_of(tensors))
    params = _params(model)
    faults = _mismatches(table, params, tensors)
    if faults:
        raise ValueError(
            f"{source}: the weights do not fit the model of config.json:\n  "
            + "\n  ".join(faults)
        )
    update = [
        (
            _key(entry.path),
            params[entry.path].replace(jnp.asarray(entry.to_param(tensors))),
        )
        for entry in table
    ]
    nnx.update(model, nnx.from_flat_state(update))


def parameter_count(build: Callable[[], nnx.Module]) -> int:
    """Number of parameters of the model that `build` makes; allocates none of them."""
    state = nnx.state(nnx.eval_shape(build), nnx.Param)
    return sum(int(np.prod(param.shape)) for _, param in nnx.to_flat_state(state))


def _mismatches(table: Table, params: Mapping[str, Any], tensors: Tensors) -> list[str]:
    shapes = {
        name: entry.shape(params[entry.path].shape)
        for entry in table
        for name in entry.names
    }
    faults = [f"missing: {name}" for name in shapes if name not in tensors]
    for name, tensor in tensors.items():
        if name not in shapes:
            faults.append(f"unexpected: {name} {tensor.shape}")
        elif tensor.shape != shapes[name]:
            faults.append(f"wrong shape: {name} is {tensor.shape}, not {shapes[name]}")
        elif tensor.dtype not in _FLOATS:
            faults.append(f"wrong type: {name} is {tensor.dtype}, not a float")
    return faults


def _params(model: Model) -> dict[str, Any]:
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): param for path, param in flat}


def _key(path: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("."))
