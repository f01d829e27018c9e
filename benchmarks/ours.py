"""cdejax's training step, run as training runs it, and when what happened."""

from __future__ import annotations

import collections
import functools
import importlib.util
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from encoders import Kind, Model, build
from flax import nnx
from jax.sharding import Mesh
from texts import World

from cdejax.config import TrainingConfig
from cdejax.runtime.global_arrays import replicate
from cdejax.training.batch import Batch, BatchSettings
from cdejax.training.batch_maker import BatchMaker
from cdejax.training.layout import Layout
from cdejax.training.memory import chunk_tokens, kept_chunks
from cdejax.training.objectives import InfoNCE
from cdejax.training.optimizer import make_optimizer
from cdejax.training.run_model import first_state
from cdejax.training.shapes import find_shapes
from cdejax.training.sharding import make_mesh
from cdejax.training.step import Kept, LossSettings, State, put_batch, train_step

WIDTHS = 8
"""Of padded rows at most, unless told otherwise."""
DROPOUT = 0.005
"""Of a context's documents, unless told otherwise."""
THREADS = 4
"""Reader threads, as `training.read_threads` has it."""


@dataclass(frozen=True)
class Settings:
    """What is trained and how."""

    kind: Kind
    context: int
    """Context documents (0: biencoder)."""
    packed: bool = True
    chunk_tokens: int | None = None
    """None: as training chooses."""
    keep: int | None = None
    """The same."""
    max_widths: int = WIDTHS
    temperature: float = 0.05
    sequence_dropout: float = 0.0
    seed: int = 0
    toy: bool = False
    fsdp: int = 1
    """Devices that share the parameters."""


class Moments(NamedTuple):
    """Seconds of one step, by the clock."""

    asked: float
    """The loader was asked for the batch."""
    got: float
    """It had it."""
    put: float
    """The batch was on its way to the device."""
    sent: float
    """So was the step."""
    done: float
    """The device had finished it."""


@dataclass
class Run:
    """A step that is ready to be called, and what it took."""

    model: Model
    """Its sizes; no weights."""
    mesh: Mesh
    maker: BatchMaker
    kept: Kept
    step: Callable[..., Any]
    state: State
    key: Any
    seconds: dict[str, float]

    def train(self, steps: range) -> tuple[list[Moments], list[float]]:
        """Runs steps as the training loop does: each waits for the one before it."""
        early: list[tuple[float, float, float, float]] = []
        ends: list[Future[float]] = []
        losses = []
        loader = _load(self.maker.step, steps)
        # A thread of its own sees when the device is done, whatever the host does.
        with ThreadPoolExecutor(1) as watcher:
            while True:
                asked = time.perf_counter()
                found = next(loader, None)
                if found is None:
                    break
                got = time.perf_counter()
                batch = put_batch(found[1], self.mesh)
                put = time.perf_counter()
                self.state, metrics = self.step(self.state, batch, self.key)
                early.append((asked, got, put, time.perf_counter()))
                ends.append(watcher.submit(_finished, metrics["loss"]))
                losses.append(metrics["loss"])
                if len(ends) > 1:
                    ends[-2].result()
            moments = [
                Moments(*before, end.result())
                for before, end in zip(early, ends, strict=True)
            ]
        return moments, [float(loss) for loss in losses]


def _finished(value: Any) -> float:
    jax.block_until_ready(value)
    return time.perf_counter()


def prepare(settings: Settings, world: World, devices: list[Any]) -> Run:
    """Everything up to the first step, which compiles."""
    start = time.perf_counter()
    mesh = make_mesh(devices, settings.fsdp)
    make = functools.partial(
        build, settings.kind, context=settings.context, toy=settings.toy
    )
    model = nnx.eval_shape(make)
    graphdef = nnx.split(model)[0]
    optimizer = make_optimizer(TrainingConfig(schedule="constant"), 1)

    # One by one: compiled in one piece, random weights of many shapes take minutes.
    params = nnx.split(make(seed=settings.seed))[1]
    state = jax.block_until_ready(first_state(optimizer, params, mesh))
    built = time.perf_counter()
    maker = make_batches(settings, world, model, mesh)
    kept = _kept(settings, model, maker, mesh)
    step = train_step(
        graphdef,
        mesh,
        LossSettings(
            InfoNCE(settings.temperature), sequence_dropout=settings.sequence_dropout
        ),
        optimizer,
        state.params,
        kept,
    )
    key = replicate(jax.random.key(settings.seed), mesh)
    seconds = {"model": built - start, "plan": time.perf_counter() - built}
    return Run(model, mesh, maker, kept, step, state, key, seconds)


def make_batches(
    settings: Settings, world: World, model: Model, mesh: Mesh
) -> BatchMaker:
    contextual = settings.kind == "contextual"
    chosen = settings.chunk_tokens
    how = BatchSettings(
        seed=settings.seed,
        devices=mesh.size,
        chunk_tokens=chunk_tokens(model, mesh) if chosen is None else chosen,
        context_size=settings.context if contextual else 0,
        soft_tokens=model.config.soft_tokens if contextual else 0,  # type: ignore[union-attr]
        negatives_per_query=0,
        max_widths=settings.max_widths,
        packed=settings.packed,
    )
    shapes = find_shapes(*world, how)
    return BatchMaker(*world, how, shapes)


def _kept(settings: Settings, model: Model, maker: BatchMaker, mesh: Mesh) -> Kept:
    if settings.keep is None:
        return kept_chunks(model, maker, mesh)
    layout = maker.layouts[0]
    group = int(np.argmax([_positions(layout, i) for i in range(len(layout.shapes))]))
    kept = [0] * len(layout.shapes)
    kept[group] = min(settings.keep, layout.shapes[group].least)
    return Kept(tuple(kept))


def _positions(layout: Layout, group: int) -> int:
    """Token positions that a group of rows has in every step."""
    shape = layout.shapes[group]
    return shape.least * layout.chunk_positions(shape)


def _load(make: Callable[[int], Batch], steps: range) -> Iterator[tuple[int, Batch]]:
    """The product's loader; where grain is missing, threads that do the same."""
    if importlib.util.find_spec("grain") is None:
        return _threads(make, steps)
    from cdejax.data.loader import batches

    return batches(make, steps.start, steps.stop, threads=THREADS)


def _threads(
    make: Callable[[int], Batch], steps: range, ahead: int = 4
) -> Iterator[tuple[int, Batch]]:
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: collections.deque[tuple[int, Future[Batch]]] = collections.deque()
        for step in steps:
            waiting.append((step, pool.submit(make, step)))
            if len(waiting) > ahead:
                number, batch = waiting.popleft()
                yield number, batch.result()
        for number, batch in waiting:
            yield number, batch.result()
