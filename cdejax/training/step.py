"""The training step: two cached stages and one loss, over any number of devices.

The loss and its gradients are computed inside one `jax.shard_map`. Parameters are made
device-varying before differentiation, so that gradients stay on their device until one
reduction at the end; otherwise every chunk would need a reduction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float, Int, Key

from cdejax.models import BiEncoder, ContextualEncoder, TrainableModel
from cdejax.runtime.compilation import model_options
from cdejax.runtime.global_arrays import replicate
from cdejax.runtime.mesh import DATA
from cdejax.runtime.platforms import has_tpu
from cdejax.training.batch import Batch
from cdejax.training.cache import Chunks, Encode, encode_cached
from cdejax.training.layerwise import merge_layerwise
from cdejax.training.objectives import (
    BLOCK,
    Objective,
    QueryTerms,
    batch_terms,
    ring_terms,
)
from cdejax.training.relation import Relation
from cdejax.training.rows import PaddedRows, Rows
from cdejax.training.sharding import (
    EVERYWHERE,
    FSDP,
    ROWS,
    gather_parameters,
    scatter_gradients,
    shardings_of,
    specs_of,
    split_dim,
)
from cdejax.typing import AnyArray

AXES = (DATA, FSDP)
Params = Any
"""Pytree of parameters, as `nnx.split` returns it."""


Metrics = dict[str, Float[Array, ""]]
"""Means over the queries of the global batch: `loss`; `accuracy`, the share of queries
whose own positive scores above every negative; `hardness`, the cosine of the hardest
negative; `masked_share`, the share of documents that are ignored; and the objective's
own metrics."""


@dataclass(frozen=True)
class LossSettings:
    """Settings of the loss."""

    objective: Objective
    relation: Relation = field(default_factory=Relation)
    block: int = BLOCK
    sequence_dropout: float = 0.0
    ring: bool = False
    """Whether documents pass from device to device instead of being gathered."""

    @property
    def needs_surrogate(self) -> bool:
        """Whether surrogate vectors are needed."""
        return self.relation.margin is not None or self.objective.needs_surrogate


class State(NamedTuple):
    """The state of training, which checkpoints hold."""

    params: Params
    optimizer: Any
    step: Int[Array, ""]


class Kept(NamedTuple):
    """Number of chunks, per group of a batch, whose activations are saved for the
    backward pass."""

    texts: tuple[int, ...] = ()
    context: tuple[int, ...] = ()


RECOMPUTE = Kept()
"""Save no activations: recompute all of them in the backward pass."""


def put_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Moves this process's part of a batch to its devices, as global arrays."""
    make = functools.partial(
        jax.make_array_from_process_local_data, NamedSharding(mesh, ROWS)
    )
    # JAX's own way to replicate an array synchronises with the other processes, whose
    # reader threads may be at another batch.
    order = replicate(batch.context_order, mesh)
    rest = batch._replace(context_order=None)
    return jax.tree.map(make, rest)._replace(context_order=order)


def loss_and_gradients(
    graphdef: nnx.GraphDef, mesh: Mesh, settings: LossSettings, kept: Kept = RECOMPUTE
) -> Callable[[Params, Batch, Key[Array, ""]], tuple[Metrics, Params]]:
    """Returns a function (params, batch, key) -> (metrics, gradients of the mean loss).

    The loss is the mean over all queries of the global batch, each scored against all
    documents of the global batch. Loss and gradients do not depend on the number of
    devices, the chunk sizes or the order of texts by length, up to the order of sums:
    random keys are derived from step, side and row, never from chunks. Gradients are
    sharded over the mesh like the parameters, see `sharding`.

    Args:
      graphdef: the model's structure, as `nnx.split` returns it.
      mesh: the devices.
      settings: the settings of the loss.
      kept: the chunks whose activations are saved.
    """

    def run(params: Params, batch: Batch, key: Array) -> tuple[Metrics, Params]:
        leaves, structure = jax.tree.flatten(params)
        dims = [split_dim(x.shape, mesh.size) for x in leaves]
        pattern = [-1 if dim is None else dim for dim in dims]

        def local(
            shards: list[Array], batch: Batch, key: Array
        ) -> tuple[Metrics, list[Array]]:
            def loss(parts: list[Array]) -> tuple[Array, Metrics]:
                params = jax.tree.unflatten(structure, parts)
                dims = jax.tree.unflatten(structure, pattern)
                model = functools.partial(merge_layerwise, graphdef, params, dims)
                return _local_loss(model, batch, key, settings, kept)

            # The gather is outside the differentiated function: each device computes
            # the gradient of its own share of the loss, and one reduction follows.
            # Inside, the gather's transpose would reduce once per chunk of the loop.
            differentiate = jax.value_and_grad(loss, has_aux=True)
            (_, metrics), gradients = differentiate(gather_parameters(shards, dims))
            gradients, metrics = scatter_gradients(gradients, dims, metrics)
            return metrics, gradients

        specs = specs_of(leaves, mesh)
        sharded = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(specs, _specs(batch, ROWS, EVERYWHERE), EVERYWHERE),
            out_specs=(EVERYWHERE, specs),
            # Splash attention, used on TPUs, does not declare what its outputs vary
            # over.
            check_vma=not has_tpu(mesh),
        )
        metrics, gradients = sharded(leaves, batch, key)
        return metrics, jax.tree.unflatten(structure, gradients)

    return run


def train_step(
    graphdef: nnx.GraphDef,
    mesh: Mesh,
    settings: LossSettings,
    optimizer: optax.GradientTransformation,
    params: Params,
    kept: Kept = RECOMPUTE,
) -> Callable[
    [State, Batch, Key[Array, ""]], tuple[State, dict[str, Float[Array, ""]]]
]:
    """Returns a compiled function (state, batch, seed key) -> (next state, metrics).

    The state is donated, and must be sharded over the mesh as `sharding.put_state` does
    it. All batches of a `BatchMaker` have the same shapes, so the function compiles
    once. On NVIDIA GPUs, it cannot be called inside another compiled function, see
    `model_options`.

    Args:
      graphdef: the model's structure, as `nnx.split` returns it.
      mesh: the devices.
      settings: the settings of the loss.
      optimizer: the optimizer.
      params: parameters, of which only the shapes are used.
      kept: the chunks whose activations are saved.
    """
    differentiate = loss_and_gradients(graphdef, mesh, settings, kept)

    def step(state: State, batch: Batch, key: Array) -> tuple[State, dict[str, Array]]:
        key = jax.random.fold_in(key, state.step)
        metrics, gradients = differentiate(state.params, batch, key)
        updates, inner = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        values = metrics | {"gradient_norm": optax.tree.norm(gradients)}
        return State(params, inner, state.step + 1), values

    shapes = State(params, jax.eval_shape(optimizer.init, params), jnp.int32(0))
    everywhere = NamedSharding(mesh, EVERYWHERE)
    # Without them, the second step could get other shardings and be compiled again.
    out = (shardings_of(shapes, mesh), everywhere)
    return jax.jit(
        step,
        donate_argnums=0,
        out_shardings=out,
        compiler_options=model_options(mesh),
    )


def _specs(batch: Batch, split: Any, same: Any) -> Batch:
    specs = jax.tree.map(lambda _: split, batch)
    return specs._replace(context_order=same)


def _local_loss(
    model: Callable[[Rows], TrainableModel],
    batch: Batch,
    key: Array,
    settings: LossSettings,
    kept: Kept,
) -> tuple[Float[Array, ""], Metrics]:
    """This device's share of the mean loss; the sum over all devices is the loss."""
    batch = _in_step(batch)
    if batch.context:
        dropout = settings.sequence_dropout
        encode = _two_stages(model, batch, key, dropout, kept)  # type: ignore[arg-type]
    else:
        encode = _one_stage(model)  # type: ignore[arg-type]
    vectors = encode_cached(encode, batch.texts, kept.texts)
    queries, documents = vectors[batch.query_at], vectors[batch.document_at]
    terms = (ring_terms if settings.ring else batch_terms)(
        settings.objective,
        settings.relation,
        queries,
        documents,
        batch.query_rows,
        batch.document_columns,
        block=settings.block,
        axes=AXES,
    )
    devices = jax.lax.axis_size(AXES)
    return _means(terms, batch.document_at.shape[0] * devices, devices)


def _in_step(batch: Batch) -> Batch:
    """Makes devices that shard the parameters process the same number of chunks.

    Each chunk gathers parameters from all of these devices: if one had fewer chunks,
    the others would wait forever.
    """
    if jax.lax.axis_size(FSDP) == 1:
        return batch

    def agree(group: Chunks) -> Chunks:
        return group._replace(count=jax.lax.pmax(group.count, FSDP))

    texts, context = (tuple(map(agree, x)) for x in (batch.texts, batch.context))
    return batch._replace(texts=texts, context=context)


def _one_stage(model: Callable[[Rows], BiEncoder]) -> Encode:
    """Returns a function that embeds chunks of padded or packed rows."""
    return lambda rows: rows.encode(model(rows))


def _two_stages(
    model: Callable[[Rows], ContextualEncoder],
    batch: Batch,
    key: Array,
    dropout: float,
    kept: Kept,
) -> Encode:
    """Embeds the context; returns the second stage, which reads it.

    Each device runs the first stage on its share of the context. All queries and
    documents of the global batch share one context; autodiff sums its cotangent over
    the chunks of the second stage.
    """
    first = _one_stage(lambda rows: model(rows).first)
    local = encode_cached(first, batch.context, kept.context)[batch.context_at]
    gathered = jax.lax.all_gather(local, AXES, tiled=True)
    context = gathered[batch.context_order]

    def second(rows: PaddedRows) -> Float[Array, "rows dim"]:
        dropped = None
        if dropout > 0:
            size = context.shape[0]
            dropped = sequence_dropout(key, rows.sides, rows.numbers, size, dropout)
        return model(rows).second_stage(
            rows.ids, context=context, lengths=rows.lengths, dropped=dropped
        )

    return second


def sequence_dropout(
    key: Key[Array, ""],
    sides: Int[AnyArray, "chunk"],
    rows: Int[AnyArray, "chunk"],
    size: int,
    probability: float,
) -> Bool[Array, "chunk context"]:
    """Draws the context positions that each text sees as the null vector.

    Args:
      key: the step's random key.
      sides: 0 for a query, 1 for a document.
      rows: index of each text in the global batch.
      size: number of context vectors.
      probability: probability of each position.
    """

    def draw(side: Array, row: Array) -> Bool[Array, "context"]:
        own = jax.random.fold_in(jax.random.fold_in(key, side), row)
        return jax.random.bernoulli(own, probability, (size,))

    return jax.vmap(draw)(jnp.asarray(sides), jnp.asarray(rows))


def _means(
    terms: QueryTerms, columns: int, devices: int
) -> tuple[Float[Array, ""], Metrics]:
    """This device's shares of the means over the global batch, which sum to them."""
    share = 1 / (terms.loss.shape[0] * devices)
    loss = terms.loss.sum() * share
    metrics = {
        "loss": jax.lax.stop_gradient(loss),
        "accuracy": terms.correct.sum() * share,
        "hardness": terms.hardest.sum() * share,
        "masked_share": terms.masked.sum() * (share / columns),
        **{name: values.sum() * share for name, values in terms.metrics.items()},
    }
    return loss, jax.tree.map(lambda x: x.astype(jnp.float32), metrics)
