"""Reads sentence-transformers' files: the encoder's folder, its pooling and head."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from cdejax.folders.keys import check_keys
from cdejax.folders.model_keys import HEAD
from cdejax.folders.module_settings import module_settings
from cdejax.folders.reading import is_file, read_json, read_json_value
from cdejax.models.checkpoints.config import check_value
from cdejax.models.checkpoints.registry import architecture
from cdejax.models.kernels.elementwise import gelu
from cdejax.models.layers import Head
from cdejax.models.modules import (
    ACTIVATIONS,
    Chain,
    Dense,
    LayerNorm,
    Module,
    Normalize,
)
from cdejax.models.pooling import Pooling, pooled_size
from cdejax.models.pretrained.files import (
    read_config,
    read_tensors,
    weights_file,
)
from cdejax.models.pretrained.fit import check_fit

MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean",
    "last": "lasttoken",
}
"""Our names of pooling modes and sentence-transformers', in the order of its flags."""
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "last": "pooling_mode_lasttoken",
}
"""The flag of each mode in the older format of a pooling module's `config.json`."""
_SIZES = ("embedding_dimension", "word_embedding_dimension")
"""The newer and the older key for the size of a token's vector."""
_HEAD = ("Dense", "LayerNorm", "Normalize")
_ENDS = ("module_input_name", "module_output_name")
_LIBRARY = "sentence_transformers."
_ROUTERS = ("Router", "Asym")
# The settings of each module's class in sentence-transformers.
_SETTINGS = {
    "Pooling": ("pooling_mode", "include_prompt", *FLAGS.values(), *_SIZES),
    "Dense": (
        *("in_features", "out_features", "bias", "activation_function"),
        *("use_residual", *_ENDS),
    ),
    "LayerNorm": ("dimension", *_ENDS),
    "Normalize": _ENDS,
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Modules:
    """A folder's modules."""

    encoder: Path
    """The folder with the encoder's `config.json` and weights."""
    pooling: Pooling = "mean"
    """How token states become one vector."""
    include_prompt: bool = True
    """Whether a prompt's tokens are pooled."""
    head: Head | Chain | None = None
    """The modules after pooling, without a final Normalize."""


def list_modules(folder: Path) -> list[tuple[str, Path]]:
    """Class name and folder of each module in `modules.json`; empty without the file.

    Classes of sentence-transformers are given without their module path, which differs
    between versions. Classes of other packages, whose code comes with a folder, keep
    theirs.

    Raises:
      ValueError: the file is not a list of modules, two modules have the same name, or
        a module is outside the folder.
    """
    path = folder / "modules.json"
    if not is_file(path):
        return []
    listed = read_json_value(path)
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{path}: a list of modules was expected, not {listed!r:.60}")
    names = [m.get("name") for m in listed if isinstance(m, dict) and "name" in m]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"{path}: two modules have the name {twice[0]!r}, of which "
            "sentence-transformers drops one; give each a name of its own"
        )
    return [_listed(module, path) for module in listed]


def _listed(module: Any, path: Path) -> tuple[str, Path]:
    """Class name and folder of one entry of `modules.json`."""
    fields = module if isinstance(module, dict) else {}
    kind, place = fields.get("type"), fields.get("path")
    if not isinstance(kind, str) or not isinstance(place, str):
        raise ValueError(
            f"{path}: a module needs texts as `type` and `path`, not {module!r:.200}"
        )
    if kind.startswith(_LIBRARY):
        kind = kind.rsplit(".", 1)[-1]
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise ValueError(f"{path}: {kind} at {place!r}, outside of the folder")
    return kind, path.parent / place


def read_modules(folder: Path) -> Modules:
    """Reads the modules that `modules.json` lists; without it, uses mean pooling.

    Supported are Transformer and Pooling, followed by any number of Dense, LayerNorm
    and Normalize in any order. A Dense with GELU followed by a Dense without activation
    is read as an MLP head.

    Raises:
      ValueError: a module or setting is not supported (the message names it), or
        weights do not fit.
    """
    found = list_modules(folder)
    if not found:
        return Modules(folder)
    kinds = [kind for kind, _ in found]
    _refuse_routers(kinds, folder)
    read_config(found[0][1])  # if it is missing, report that first
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - set(_HEAD):
        raise ValueError(
            f"{folder / 'modules.json'}: modules {kinds}, but cdejax reads Transformer "
            f"and Pooling, then any of {', '.join(_HEAD)}"
        )
    encoder, tail = found[0][1], found[2:]
    module_settings(encoder)
    pooling, size, include_prompt = _pooling(found[1][1] / "config.json", encoder)
    head: list[Module] = []
    for kind, place in tail:
        head.append(_read(kind, place, head[-1].out if head else size))
    while head and isinstance(head[-1], Normalize):
        head.pop()
    return Modules(encoder, pooling, include_prompt, _joined(head))


def _refuse_routers(kinds: list[str], folder: Path) -> None:
    if routers := [kind for kind in kinds if kind in _ROUTERS]:
        raise ValueError(
            f"{folder / 'modules.json'}: {routers[0]} sends queries and documents "
            "through different modules, and one model for both is read here; save the "
            "route that you need as a SentenceTransformer of its own (modules="
            'model[0].sub_modules["document"]) and load that'
        )


def _pooling(path: Path, encoder: Path) -> tuple[Pooling, int, bool]:
    """Pooling modes, size of a pooled vector, and whether prompts are pooled."""
    raw = read_json(path)
    _check_flags(raw, path)
    _warn_of_unknown(raw, "Pooling", path)
    modes = raw["pooling_mode"] if "pooling_mode" in raw else _flagged(raw, path)
    modes = [modes] if isinstance(modes, str) else modes
    names = {theirs: ours for ours, theirs in MODES.items()}
    listed = isinstance(modes, list) and bool(modes)
    if not listed or any(mode not in list(names) for mode in modes):
        raise ValueError(f"{path}: pooling {modes} is not one of {list(names)}")
    pooling = "+".join(names[mode] for mode in modes)
    include_prompt = raw.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ValueError(f"{path}: include_prompt {include_prompt!r} is no boolean")
    hidden = _hidden_size(encoder / "config.json")
    for key in _SIZES:
        if raw.get(key, hidden) != hidden:
            raise ValueError(
                f"{path}: {key} is {raw[key]!r}, but the encoder's hidden size is "
                f"{hidden}; write {hidden}"
            )
    return pooling, pooled_size(hidden, pooling), include_prompt


def _check_flags(raw: dict[str, Any], path: Path) -> None:
    """Raises ValueError if the flag of an unsupported pooling mode is set."""
    for key, value in raw.items():
        if not key.startswith("pooling_mode_"):
            continue
        if key not in FLAGS.values() and value:
            raise ValueError(
                f"{path}: {key} is {value!r:.60}, a pooling that cdejax does not know; "
                f"it computes {', '.join(FLAGS.values())}"
            )
        # sentence-transformers also accepts 1 and 0 as flags.
        if value not in (True, False, None):
            raise ValueError(f"{path}: {key} is {value!r:.60}, not true or false")


def _warn_of_unknown(raw: dict[str, Any], kind: str, path: Path) -> None:
    """Warns about settings of a module that are ignored."""
    unknown = [
        key for key, value in raw.items() if value and key not in _SETTINGS[kind]
    ]
    if unknown:
        _log.warning(
            "%s: settings that a %s module does not have are ignored: %s",
            path,
            kind,
            ", ".join(f"{key}: {raw[key]!r:.60}" for key in unknown),
        )


def _flagged(raw: dict[str, Any], path: Path) -> list[str]:
    """Modes whose flags are set; if none is, mean, as in sentence-transformers."""
    modes = [MODES[mode] for mode, flag in FLAGS.items() if raw.get(flag)]
    unset = [flag for flag in FLAGS.values() if flag in raw]
    if unset and not modes:
        _log.warning(
            "%s: no pooling mode is set (%s), so mean pooling is used, as in "
            "sentence-transformers; set the mode that the model was trained with to "
            "true",
            path,
            ", ".join(f"{flag}: {raw[flag]!r}" for flag in unset),
        )
    return modes or [MODES["mean"]]


def _hidden_size(path: Path) -> int:
    """The hidden size in an encoder's `config.json`."""
    raw = read_config(path.parent)
    return architecture(raw, str(path)).read(raw, str(path)).hidden_size


def _read(kind: str, folder: Path, size: int) -> Module:
    """Reads a module of the head, with its weights; `size` is its input size."""
    path = folder / "config.json"
    bare = kind == "Normalize" and not is_file(path)
    raw = {} if bare else read_json(path)
    check_keys(raw, HEAD, str(path))
    _warn_of_unknown(raw, kind, path)
    if kind == "Normalize":
        return Normalize(size)
    if kind == "Dense":
        module = _dense(raw, path)
    else:
        module = LayerNorm(_size(raw, "dimension", path))
    if module.features != size:
        raise ValueError(
            f"{path}: takes vectors of size {module.features}, but the module before "
            f"it gives {size}"
        )
    _load(module, folder)
    return module


def _dense(raw: dict[str, Any], path: Path) -> Dense:
    name = raw.get("activation_function", "torch.nn.Tanh")
    activation = str(name).rsplit(".", 1)[-1]
    # sentence-transformers' loader only accepts classes of torch, too.
    if not str(name).startswith("torch.") or activation not in ACTIVATIONS:
        raise ValueError(
            f"{path}: activation_function {name!r} is none of torch's "
            f"{', '.join(ACTIVATIONS)}"
        )
    return Dense(
        _size(raw, "in_features", path),
        _size(raw, "out_features", path),
        nnx.Rngs(0),
        activation=activation,
        bias=check_value(raw.get("bias", True), True, "bias", str(path)),
        residual=check_value(
            raw.get("use_residual", False), False, "use_residual", str(path)
        ),
    )


def _size(raw: dict[str, Any], key: str, path: Path) -> int:
    return check_value(raw.get(key), 1, key, str(path))


def _load(module: Module, folder: Path) -> None:
    """Loads a module's parameters from its own folder."""
    tensors = read_tensors(folder)
    params = {
        ".".join(map(str, path)): param
        for path, param in nnx.to_flat_state(nnx.state(module, nnx.Param))
    }
    shapes = {}
    for entry in module.table():
        shapes[entry.names[0]] = entry.shapes(params[entry.path].shape)[0]
    check_fit(shapes, tensors, str(weights_file(folder)))
    update = [
        (
            tuple(entry.path.split(".")),
            params[entry.path].replace(jnp.asarray(entry.to_param(tensors))),
        )
        for entry in module.table()
    ]
    nnx.update(module, nnx.from_flat_state(update))


def _joined(modules: list[Module]) -> Head | Chain | None:
    """The modules as one head: a `Head` if they are CDE's MLP, otherwise a `Chain`."""
    if not modules:
        return None
    plain = [m for m in modules if isinstance(m, Dense) and not m.residual]
    names = [m.activation for m in plain if m.linear.bias is not None]
    if len(modules) == 2 and names == ["GELU", "Identity"]:
        first, last = plain
        head = Head(first.features, last.out, gelu, nnx.Rngs(0), hidden=first.out)
        head.first, head.last = first.linear, last.linear
        return head
    return Chain(modules)
