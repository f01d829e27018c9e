"""Batches of token rows through one stage of a model, split over all local devices."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from cdejax.data.ragged import Ragged
from cdejax.embedding.widths import Batch, batches, widths
from cdejax.runtime.compilation import model_options
from cdejax.runtime.mesh import DATA, split
from cdejax.runtime.platforms import has_tpu, platform

FINE, FINE_ON_CPU = 1 << 18, 1 << 12
"""With so many texts, padding saved is worth more compilations (see `widths`)."""
FEW_ON_CPU = 512
"""Fewer texts than that are encoded in the smallest batches alone: a CPU computes
several of them as fast as a large one, but would compile each size anew."""
Shape = tuple[int, int]
"""Rows and tokens of a batch."""


@dataclass
class Block:
    """Consecutive texts that are sorted by length together."""

    first: int
    """Row of its first text."""
    tokens: Ragged
    out: Float[np.ndarray, "block dim"]
    left: int
    """Vectors that are still to come."""


class Program:
    """One stage of a model as a function, compiled once per shape of a batch."""

    def __init__(self, graph: Any, stage: str, mesh: Mesh):
        every, part = PartitionSpec(), PartitionSpec(DATA)
        self.mesh = mesh
        self.run: Any = jax.jit(
            jax.shard_map(
                functools.partial(_stage, graph, stage),
                mesh=mesh,
                in_specs=(every, every, every, part, part),
                out_specs=part,
                # As in training: splash attention does not say what varies.
                check_vma=not has_tpu(mesh),
            ),
            compiler_options=model_options(mesh),
        )
        self._shapes: set[Shape] = set()

    def start(
        self,
        fixed: tuple[Any, ...],
        ids: Int[np.ndarray, "batch length"],
        lengths: Int[np.ndarray, "batch"],
    ) -> Float[Array, "batch dim"]:
        """Vectors of a batch, which devices begin to compute.

        Args:
          fixed: parameters, context and skipped tokens, on all devices.
          ids: token ids.
          lengths: of the right-padded rows.
        """
        return self.run(*fixed, *jax.device_put((ids, lengths), split(self.mesh)))

    def compile(self, fixed: tuple[Any, ...], shapes: set[Shape]) -> None:
        """Compiles what is new among shapes, several at once on the host's cores."""
        new = sorted(shapes - self._shapes)
        self._shapes |= shapes
        if len(new) < 2:  # it compiles where it is first used
            return

        def compile_one(shape: Shape) -> None:
            ids = np.zeros(shape, np.int32)
            self.start(fixed, ids, np.ones(len(ids), np.int32)).block_until_ready()

        with ThreadPoolExecutor() as pool:
            list(pool.map(compile_one, new))


@functools.lru_cache(64)
def program(graph: Any, stage: str, mesh: Mesh) -> Program:
    """The program of a structure, whatever its parameters.

    Looked up once per call of `encode`: to hash a graph takes longer than to start a
    batch.
    """
    return Program(graph, stage, mesh)


@dataclass(frozen=True)
class Call:
    """A program with all that is the same for every batch."""

    program: Program
    fixed: tuple[Any, ...]
    batch_size: int
    """Rows on a device."""
    max_length: int
    pad_id: int
    count: int
    """Texts in all blocks together."""

    def started(
        self, blocks: Iterable[Block]
    ) -> Iterator[tuple[tuple[Block, Batch], Float[Array, "batch dim"]]]:
        """Pads batches and starts to encode them."""
        for block in blocks:
            plan = self._plan(block.tokens.lengths)
            self.program.compile(self.fixed, {(b.size, b.width) for b in plan})
            for batch in plan:
                arrays = self._padded(block.tokens, batch)
                yield (block, batch), self.program.start(self.fixed, *arrays)

    def _plan(self, lengths: Int[np.ndarray, "texts"]) -> list[Batch]:
        cpu = platform(self.program.mesh) == "cpu"
        devices = self.program.mesh.size
        fine = self.count >= (FINE_ON_CPU if cpu else FINE)
        # an accelerator computes padding sooner than it compiles another shape
        least = max(8 // devices, 1) if cpu else self.batch_size
        most = (
            min(least, self.batch_size) if self.count < FEW_ON_CPU else self.batch_size
        )
        wide = widths(self.max_length, fine)
        return batches(lengths, most, wide, least, devices)

    def _padded(
        self, tokens: Ragged, batch: Batch
    ) -> tuple[Int[np.ndarray, "batch length"], Int[np.ndarray, "batch"]]:
        count = len(batch.rows)
        ids = np.full((batch.size, batch.width), self.pad_id, np.int32)
        ids[:count] = tokens.padded(batch.rows, batch.width, self.pad_id)
        lengths = np.ones(batch.size, np.int32)
        lengths[:count] = tokens.lengths[batch.rows]
        return ids, lengths


def _stage(
    graph: Any,
    stage: str,
    params: Any,
    context: Any,
    skip: Int[Array, ""] | None,
    ids: Int[Array, "batch length"],
    lengths: Int[Array, "batch"],
) -> Float[Array, "batch dim"]:
    """What each device does with its rows."""
    model = nnx.merge(graph, params)
    if stage == "first":
        return model.first_stage(ids, lengths=lengths)
    if context is not None:
        vectors, mask = context
        return model.second_stage(ids, None, vectors, mask, lengths=lengths)
    if skip is not None:
        return model(ids, lengths=lengths, skip=skip)
    return model(ids, lengths=lengths)
