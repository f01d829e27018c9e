"""`step.py memory`: what a batch of 65,536 needs on one device, and its loss alone."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from comparison import settings_of, variations
from encoders import vocabulary
from figures import peak_bytes, shapes
from ours import Settings, prepare
from reporting import file_of
from step_report import draw, facts, merge, rows_table
from texts import make_world

from cdejax.training.batch import Batch
from cdejax.training.objectives import info_nce
from cdejax.training.step import put_batch

PARTS = ("argument", "output", "temp", "alias")


def measure_memory(options: argparse.Namespace) -> None:
    settings = settings_of(options, "biencoder", options.batch)
    if settings.keep is None:  # what is free would be filled with activations
        settings = dataclasses.replace(settings, keep=0)
    found = _measure(settings, options.batch, options.max_length)
    about = facts()
    path = file_of(options.out, options.file, about["date"])
    name = f"{options.batch:,} pairs of {options.max_length} tokens"
    name = ", ".join([name, *variations(options)])
    merge(path, {name: found}, sys.argv)
    sizes = {f"step: {k}": v for k, v in found["step"].items()}
    sizes |= {f"loss alone: {k}": v for k, v in found["loss"].items()}
    sizes["full score matrix, float32"] = found["score_matrix"]
    sizes |= {"peak": found["peak_bytes"]} if found["peak_bytes"] else {}
    title = f"biencoder, {name}, {about['devices']}"
    draw(path.with_suffix(".png"), _gib(sizes), "GiB", title)
    print(f"step of {found['seconds']:.2f} s, loss {found['loss_value']:.4f}")
    rows = [[key, f"{value:,.3f}"] for key, value in _gib(sizes).items()]
    rows_table(title, ("", "GiB"), rows)


def _measure(settings: Settings, batch: int, length: int) -> dict[str, Any]:
    """Compiles a step, runs it once, and compiles the loss alone."""
    lengths = np.full((batch, 2), length)
    world = make_world(
        lengths, batch, vocabulary("biencoder", settings.toy), settings.seed
    )
    run = prepare(settings, world, jax.devices()[:1])
    placed = put_batch(run.maker.step(0), run.mesh)
    start = time.perf_counter()
    compiled = run.step.lower(run.state, placed, run.key).compile()
    compiling = time.perf_counter() - start
    start = time.perf_counter()
    _, metrics = jax.block_until_ready(compiled(run.state, placed, run.key))
    seconds = time.perf_counter() - start
    return {
        "step": parts(compiled),
        "loss": parts(compile_loss(placed, run.model.dim, settings.temperature)),
        "score_matrix": batch * batch * 4,
        "peak_bytes": peak_bytes(jax.devices()[:1]),
        "compile_seconds": compiling,
        "seconds": seconds,
        "loss_value": float(metrics["loss"]),
        **shapes(run),
    }


def compile_loss(batch: Batch, dim: int, temperature: float) -> Any:
    """The loss and its gradient in the embeddings, compiled for a batch's shapes."""

    def mean(queries: Any, documents: Any, rows: Any, columns: Any) -> Any:
        terms = info_nce(queries, documents, rows, columns, temperature=temperature)
        return terms.loss.mean()

    vectors = jax.ShapeDtypeStruct((len(batch.query_at), dim), jnp.float32)
    differentiate = jax.jit(jax.value_and_grad(mean, (0, 1)))
    ids = batch.query_rows, batch.document_columns
    return differentiate.lower(vectors, vectors, *ids).compile()


def parts(compiled: Any) -> dict[str, int]:
    """Bytes of a compiled function."""
    found = compiled.memory_analysis()
    return {part: getattr(found, f"{part}_size_in_bytes") for part in PARTS}


def _gib(sizes: dict[str, int]) -> dict[str, float]:
    return {name: size / 2**30 for name, size in sizes.items()}
