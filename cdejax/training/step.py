"""The training step: two cached stages and one loss, over any number of devices.

The step stands inside one `jax.shard_map` over `data`. Parameters are marked as varying
before they are differentiated, so that gradients stay on their device until one sum at
the end: otherwise every scan iteration would hold a reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from cdejax.models import BiEncoder, ContextualEncoder
from cdejax.training.batches import Batch
from cdejax.training.cache import Chunks, encode_cached
from cdejax.training.loss import QueryTerms, info_nce
from cdejax.training.relation import Duplicates
from cdejax.typing import AnyArray, Device

AXIS = "data"
Params = Any
"""Pytree of parameters, as `nnx.split` gives it."""
Encode = Callable[[Chunks, int], Float[Array, "chunk dim"]]
"""Embeds one chunk of queries (side 0) or documents (side 1)."""


@dataclass(frozen=True)
class LossSettings:
    """What the loss depends on beside the batch."""

    temperature: float
    duplicates: Duplicates = "ignore"
    margin: float | None = None
    block: int = 4096
    sequence_dropout: float = 0.0


class Metrics(NamedTuple):
    """Means over the queries of the global batch."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    """Queries whose positive scores above every negative."""
    hardness: Float[Array, ""]
    """Cosine of the hardest negative."""
    masked_share: Float[Array, ""]
    """Cells left out of the denominator."""


class State(NamedTuple):
    """What a checkpoint holds."""

    params: Params
    optimizer: Any
    step: Int[Array, ""]


def data_mesh(devices: list[Device] | None = None) -> Mesh:
    """A mesh of the given devices (default: all) along `data`."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (AXIS,), devices=devices)


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Moves a process's part of a batch to its devices, as global arrays."""
    split = NamedSharding(mesh, PartitionSpec(AXIS))
    same = NamedSharding(mesh, PartitionSpec())
    specs = _specs(batch, split, same)
    make = jax.make_array_from_process_local_data
    return jax.tree.map(lambda x, sharding: make(sharding, x), batch, specs)


def loss_and_gradients(
    graphdef: nnx.GraphDef, mesh: Mesh, settings: LossSettings
) -> Callable[[Params, Batch, Key[Array, ""]], tuple[Metrics, Params]]:
    """A function (params, batch, key) -> (metrics, gradients of the mean loss).

    The loss is the mean over all queries of the global batch against all documents of
    the global batch. Neither depends on the number of devices, the chunk sizes or the
    order of texts by length, up to the order of sums: random keys are folded per step,
    side and row, never per chunk.
    """

    def local(params: Params, batch: Batch, key: Array) -> tuple[Metrics, Params]:
        varying = jax.tree.map(lambda x: jax.lax.pcast(x, AXIS, to="varying"), params)
        (_, metrics), gradients = jax.value_and_grad(_local_loss, has_aux=True)(
            varying, batch, key, graphdef, settings
        )
        return jax.lax.psum((metrics, gradients), AXIS)

    def run(params: Params, batch: Batch, key: Array) -> tuple[Metrics, Params]:
        split, same = PartitionSpec(AXIS), PartitionSpec()
        sharded = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(same, _specs(batch, split, same), same),
            out_specs=same,
        )
        return sharded(params, batch, key)

    return run


def train_step(
    graphdef: nnx.GraphDef,
    mesh: Mesh,
    settings: LossSettings,
    optimizer: optax.GradientTransformation,
) -> Callable[
    [State, Batch, Key[Array, ""]], tuple[State, dict[str, Float[Array, ""]]]
]:
    """A compiled function (state, batch, seed key) -> (next state, metrics).

    The state is donated. A batch of a new shape compiles anew: see `layout`.
    """
    differentiate = loss_and_gradients(graphdef, mesh, settings)

    def step(state: State, batch: Batch, key: Array) -> tuple[State, dict[str, Array]]:
        key = jax.random.fold_in(key, state.step)
        metrics, gradients = differentiate(state.params, batch, key)
        updates, inner = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        values = metrics._asdict() | {"gradient_norm": optax.tree.norm(gradients)}
        return State(params, inner, state.step + 1), values

    # Without it the second step would see other shardings and compile once more.
    same = NamedSharding(mesh, PartitionSpec())
    return jax.jit(step, donate_argnums=0, out_shardings=same)


def _specs(batch: Batch, split: Any, same: Any) -> Batch:
    specs = jax.tree.map(lambda _: split, batch)
    return specs._replace(context_order=same)


def _local_loss(
    params: Params,
    batch: Batch,
    key: Array,
    graphdef: nnx.GraphDef,
    settings: LossSettings,
) -> tuple[Float[Array, ""], Metrics]:
    """This device's share of the mean loss, whose sum over devices is the loss."""
    model = nnx.merge(graphdef, params)
    if isinstance(model, ContextualEncoder):
        encode = _two_stages(model, batch, key, settings.sequence_dropout)
    else:
        encode = _one_stage(model)

    def embed(groups: tuple[Chunks, ...], side: int, count: int) -> Array:
        return encode_cached(lambda chunk: encode(chunk, side), groups)[:count]

    queries = embed(batch.query, 0, batch.query_rows.row.shape[0])
    documents = embed(batch.document, 1, batch.document_columns.row.shape[0])
    gather = lambda x: jax.lax.all_gather(x, AXIS, tiled=True)  # noqa: E731
    terms = info_nce(
        queries,
        gather(documents),
        batch.query_rows,
        jax.tree.map(gather, batch.document_columns),
        temperature=settings.temperature,
        duplicates=settings.duplicates,
        margin=settings.margin,
        block=settings.block,
    )
    devices = jax.lax.axis_size(AXIS)
    return _means(terms, documents.shape[0] * devices, devices)


def _one_stage(model: BiEncoder) -> Encode:
    def only(chunk: Chunks, side: int) -> Float[Array, "chunk dim"]:
        del side  # prompts are in the ids
        return model(chunk.ids, lengths=chunk.lengths)

    return only


def _two_stages(
    model: ContextualEncoder, batch: Batch, key: Array, dropout: float
) -> Encode:
    """Runs the first stage on this device's share; returns the second, given all.

    The context is one set for all queries and documents of the global batch. Its
    cotangent accumulates over the second stage's chunks by itself.
    """
    size = batch.context_order.shape[0]
    local = encode_cached(
        lambda chunk: model.first_stage(chunk.ids, lengths=chunk.lengths), batch.context
    )[: -(-size // jax.lax.axis_size(AXIS))]
    context = jax.lax.all_gather(local, AXIS, tiled=True)[batch.context_order]

    def second(chunk: Chunks, side: int) -> Float[Array, "chunk dim"]:
        dropped = None
        if dropout > 0:
            dropped = sequence_dropout(
                jax.random.fold_in(key, side), chunk.rows, size, dropout
            )
        return model.second_stage(
            chunk.ids, context=context, lengths=chunk.lengths, dropped=dropped
        )

    return second


def sequence_dropout(
    key: Key[Array, ""], rows: Int[AnyArray, "chunk"], size: int, probability: float
) -> Bool[Array, "chunk context"]:
    """Context positions that each text sees as the null vector, by its own key."""
    draw = lambda row: jax.random.bernoulli(  # noqa: E731
        jax.random.fold_in(key, row), probability, (size,)
    )
    return jax.vmap(draw)(rows)


def _means(
    terms: QueryTerms, columns: int, devices: int
) -> tuple[Float[Array, ""], Metrics]:
    """Shares of the means over the global batch: they sum to the means."""
    share = 1 / (terms.loss.shape[0] * devices)
    loss = terms.loss.sum() * share
    metrics = Metrics(
        jax.lax.stop_gradient(loss),
        terms.correct.sum() * share,
        terms.hardest.sum() * share,
        terms.masked.sum() * (share / columns),
    )
    return loss, jax.tree.map(lambda x: x.astype(jnp.float32), metrics)
