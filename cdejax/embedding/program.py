"""One stage of a model as a compiled function of batches, split over local devices."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from cdejax.runtime.compilation import model_options
from cdejax.runtime.mesh import DATA, row_sharding
from cdejax.runtime.platforms import has_tpu

Shape = tuple[int, int]
"""Number of rows of a batch, and of tokens per row."""


class Program:
    """One stage of a model as a function, compiled once per shape of a batch."""

    def __init__(self, graph: Any, stage: str, mesh: Mesh):
        every, part = PartitionSpec(), PartitionSpec(DATA)
        self.mesh = mesh
        self.run: Any = jax.jit(
            jax.shard_map(
                functools.partial(_run_stage, graph, stage),
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
        """Starts to compute the vectors of a batch.

        Args:
          fixed: parameters, context arrays and number of prompt tokens that are not
            pooled, on all devices.
          ids: token ids.
          lengths: numbers of tokens of the right-padded rows.
        """
        return self.run(
            *fixed, *jax.device_put((ids, lengths), row_sharding(self.mesh))
        )

    def compile(self, fixed: tuple[Any, ...], shapes: set[Shape]) -> None:
        """Compiles for new shapes of batches, several at once on the host's cores."""
        new = sorted(shapes - self._shapes)
        self._shapes |= shapes
        if len(new) < 2:  # a single one compiles at its first use
            return

        def compile_one(shape: Shape) -> None:
            ids = np.zeros(shape, np.int32)
            self.start(fixed, ids, np.ones(len(ids), np.int32)).block_until_ready()

        with ThreadPoolExecutor() as pool:
            list(pool.map(compile_one, new))


@functools.lru_cache(64)
def shared_program(graph: Any, stage: str, mesh: Mesh) -> Program:
    """The program of a model's structure, shared by all its parameters.

    Look it up once per call of `encode`: hashing a graph takes longer than starting a
    batch.
    """
    return Program(graph, stage, mesh)


def _run_stage(
    graph: Any,
    stage: str,
    params: Any,
    context: Any,
    skip: Int[Array, ""] | None,
    ids: Int[Array, "batch length"],
    lengths: Int[Array, "batch"],
) -> Float[Array, "batch dim"]:
    """The vectors of one device's rows."""
    model = nnx.merge(graph, params)
    if stage == "first":
        return model.first_stage(ids, lengths=lengths)
    return model.embed(ids, lengths, context=context, skip=skip)
