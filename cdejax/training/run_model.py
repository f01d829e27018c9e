"""The model of a run: built, its initial parameters, and the trained ones."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from cdejax.config import Config, ModelConfig, TrainingConfig
from cdejax.embedding.keys import folder_files, model_files
from cdejax.folders.paths import resolve_folder
from cdejax.models import (
    BiEncoder,
    ContextualEncoder,
    TrainableModel,
    from_pretrained,
)
from cdejax.runtime.mesh import local_mesh
from cdejax.runtime.platforms import default_dtype
from cdejax.storage.artifacts import RUN, hash_files
from cdejax.training.checkpoint import Checkpoints
from cdejax.training.checkpoint_folder import saved_steps
from cdejax.training.optimizer import make_optimizer
from cdejax.training.sharding import make_mesh, put_state, shardings_of
from cdejax.training.step import State

CHECKPOINTS, BEST = "checkpoints", "best"
_TRAINED = (BEST, CHECKPOINTS)
"""Folders with a run's parameters, in order of preference."""
_log = logging.getLogger(__name__)


def activation_dtype(choice: str, mesh: Mesh) -> Any:
    """The dtype of activations: `auto` is bfloat16 on GPU and TPU, float32 on CPU."""
    return default_dtype(mesh) if choice == "auto" else jnp.dtype(choice)


@contextlib.contextmanager
def arrays_on_host() -> Iterator[None]:
    """Places new arrays in the host's memory instead of on a device.

    If JAX may not use the CPU (JAX_PLATFORMS=cuda), they go to the first device.
    """
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        yield
        return
    with jax.default_device(host):
        yield


def build_model(config: Config, mesh: Mesh | None = None) -> TrainableModel:
    """Builds the model from the folder `model.encoder`.

    New heads are initialised so that the embeddings are the encoder's own. A folder
    with a contextual encoder, or with a biencoder and its head, is used unchanged.

    Args:
      config: the recipe.
      mesh: mesh of the devices to run on (default: those of this process).

    Raises:
      ValueError: the folder cannot be loaded, or its model does not fit the recipe.
    """
    settings = config.model
    folder = resolve_folder(settings.encoder, "model.encoder")
    dtype = activation_dtype(config.training.dtype, mesh or local_mesh())
    rngs = nnx.Rngs(config.seed)
    # Each stage of a contextual encoder has its own number of layers, set below.
    layers = settings.layers if settings.kind == "biencoder" else None
    loaded = from_pretrained(folder, layers=layers, dtype=dtype)
    if loaded.kind == "baked":
        raise ValueError(
            f"model.encoder: {settings.encoder} has a context baked in and cannot be "
            "trained; give the export that it was baked from"
        )
    _check_lengths(config, loaded)
    if loaded.kind == "contextual":
        _check_settings(settings, loaded)
        return loaded
    if not loaded.include_prompt:
        raise ValueError(
            f"model.encoder: {settings.encoder} leaves prompts out of pooling, which "
            "training does not; set include_prompt to true in its 1_Pooling/config.json"
        )
    pooling = settings.pooling or loaded.pooling
    if settings.kind == "biencoder":
        if loaded.head is None:
            return BiEncoder.from_encoder(
                loaded.encoder, pooling, settings.head, rngs=rngs
            )
        return BiEncoder(loaded.encoder, pooling, loaded.head)
    if loaded.head is not None:
        _log.warning("%s: its head is left out, CDE's take its place", settings.encoder)
    return ContextualEncoder.from_encoder(
        loaded.encoder,
        rngs,
        context_size=settings.context_size,
        soft_tokens=settings.soft_tokens,
        pooling=pooling,
        layers=settings.layers,
        first_stage_layers=settings.first_stage_layers or settings.layers,
        sequence_dropout=settings.sequence_dropout,
    )


def start_files(config: Config) -> dict[str, dict[str, str]]:
    """Hashes of the files that a run starts from, by name in their folder.

    Returns:
      Those of `encoder` (weights, tokenizer, prompts) and, if it is set, of
      `init_from`.

    Raises:
      ValueError: a folder cannot be read.
    """
    encoder = resolve_folder(config.model.encoder, "model.encoder")
    found = {"encoder": folder_files(encoder)}
    if (source := config.training.init_from) is not None:
        folder = init_folder(source)
        read = model_files if is_export(folder) else run_files
        found["init_from"] = read(folder)
    return found


def run_files(run_folder: str | Path) -> dict[str, str]:
    """Hashes of a run's recipe and of the checkpoint that `trained_params` reads."""
    folder = Path(run_folder)
    saved = ((name, max(saved_steps(folder / name), default=0)) for name in _TRAINED)
    checkpoint = next((f"{name}/{step}" for name, step in saved if step), None)
    names = [name for name in (RUN, checkpoint) if name and (folder / name).exists()]
    return {name: hash_files(folder / name) for name in names}


def init_folder(source: str) -> Path:
    """The folder that `training.init_from` names: an export's or a run's.

    Raises:
      ValueError: it is neither, or missing.
    """
    folder = resolve_folder(source, "training.init_from")
    if not is_export(folder) and not (folder / CHECKPOINTS).is_dir():
        raise ValueError(
            f"training.init_from: {source} is neither an exported folder (no "
            f"config.json) nor a run (no {CHECKPOINTS}/ in it)"
        )
    return folder


def is_export(folder: Path) -> bool:
    """Whether a folder holds a model and not a run."""
    return (folder / "config.json").is_file()


def _check_settings(settings: ModelConfig, loaded: ContextualEncoder) -> None:
    """Refuses a recipe whose settings differ from the model in the folder."""
    wanted = {"kind": "contextual", "layers": None, "first_stage_layers": None}
    for name in ("context_size", "soft_tokens", "pooling"):
        wanted[name] = getattr(loaded.config, name)
    for name, value in wanted.items():
        given = getattr(settings, name)
        if given != value and not (name == "pooling" and given is None):
            raise ValueError(
                f"model.{name} is {given}, but {settings.encoder} holds a contextual "
                f"encoder whose {name} is {value}; set it to that"
            )


def _check_lengths(config: Config, model: TrainableModel) -> None:
    """Refuses maximum lengths above an encoder's number of learned positions."""
    most = model.text_encoder.longest
    if most is None:
        return
    for side in ("query", "document", "context"):
        limit = getattr(config.tokens, side)
        if limit is not None and limit.max_length > most:
            raise ValueError(
                f"tokens.{side}.max_length is {limit.max_length}, but "
                f"{config.model.encoder} has learned {most} positions; set it to "
                f"{most} or less"
            )


def initial_params(config: Config, model: TrainableModel) -> Any:
    """The initial parameters of training: the model's, or those of `init_from`.

    Raises:
      ValueError: `init_from` is neither an export nor a run, or of another model.
    """
    params = nnx.split(model)[1]
    source = config.training.init_from
    if source is None:
        return params
    folder = init_folder(source)
    if is_export(folder):
        found = nnx.split(from_pretrained(folder))[1]
    else:
        try:
            return trained_params(folder, params)
        except ValueError as error:
            raise ValueError(
                f"training.init_from: {source} holds no run of such a model, so make "
                f"`model` agree with it ({error})"
            ) from None
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (found, params)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"training.init_from: {source} holds a model of other sizes than `model` "
            "describes; make them agree"
        )
    return found


def first_state(
    optimizer: optax.GradientTransformation, params: Any, mesh: Mesh
) -> State:
    """The state before the first step, sharded over the mesh.

    Args:
      optimizer: the optimiser, which initialises its moments.
      params: the parameters, on any device.
      mesh: mesh of all processes' devices.
    """
    params = put_state(params, mesh)
    places = shardings_of(jax.eval_shape(optimizer.init, params), mesh)
    moments = jax.jit(optimizer.init, out_shardings=places)(params)
    return State(params, moments, put_state(jnp.zeros((), jnp.int32), mesh))


def trained_params(run_folder: str | Path, params: Any) -> Any:
    """The best parameters of a run, or the last ones if none were evaluated.

    Args:
      run_folder: folder of a trained variant.
      params: parameters of the same shapes.

    Raises:
      ValueError: the run has no checkpoint.
    """
    targets = params, _state_shapes(params)
    for name, target in zip(_TRAINED, targets, strict=True):
        folder = Path(run_folder) / name
        if not folder.is_dir():
            continue
        checkpoints = Checkpoints(folder, keep=1, alone=True)
        found = checkpoints.restore_latest(target, make_mesh(jax.local_devices()[:1]))
        checkpoints.close()
        if found is not None:
            return found[1].params if isinstance(found[1], State) else found[1]
    raise ValueError(f"{run_folder}: no checkpoint there; run `cdejax train` first")


def _state_shapes(params: Any) -> State:
    """Shapes of a checkpoint, which are the same for all recipes with these parameters.

    They are needed because Orbax cannot restore a part of a checkpoint.
    """
    optimizer = make_optimizer(TrainingConfig(), total_steps=1)
    inner = jax.eval_shape(optimizer.init, params)
    return State(params, inner, jnp.zeros((), jnp.int32))
