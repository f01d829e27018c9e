"""Models sharded along `fsdp`: every layer is gathered when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from cdejax.training.sharding import FSDP, split_dim

N = TypeVar("N", bound=nnx.Module)


def merge_layerwise(graphdef: nnx.GraphDef, params: Any, dims: Any, chunk: Any) -> Any:
    """Merges a model whose layers gather their parameters along `fsdp` when they run.

    Call it inside `shard_map`. The gradient of each gather is a reduce-scatter. In the
    backward pass, layers are gathered again; matrix products are saved from the forward
    pass, and everything else is recomputed.

    Args:
      graphdef: graph definition of the model.
      params: its parameters, or this device's shards of them.
      dims: a pytree of the same structure with the sharded dimension of each parameter,
        -1 for those that are not sharded.
      chunk: arrays of the chunk that the model will encode.
    """
    if jax.lax.axis_size(FSDP) == 1:
        return nnx.merge(graphdef, params)
    # Without a dependency on the chunk, XLA would hoist the gathers out of the loop
    # over chunks, and every device would hold the whole model.
    params, _ = jax.lax.optimization_barrier((params, chunk))
    model = nnx.merge(graphdef, params)
    pattern = nnx.merge(graphdef, dims)
    encoders, patterns = (list(one.encoders.values()) for one in (model, pattern))
    layers = [
        [GatheredLayer(*pair) for pair in zip(one.layers, other.layers, strict=True)]
        for one, other in zip(encoders, patterns, strict=True)
    ]
    # Layers are taken out, so that gathering the rest does not gather them as well.
    for encoder in (*encoders, *patterns):
        encoder.layers = nnx.List([])
    model = _gather_module(model, jax.tree.leaves(nnx.split(pattern)[1]))
    for encoder, wrapped in zip(model.encoders.values(), layers, strict=True):
        encoder.layers = nnx.List(wrapped)
    return model


def _gather_module(module: N, dims: Sequence[int]) -> N:
    """Gathers a module's parameters, whose sharded dimensions are `dims`."""
    graph, shards = nnx.split(module)
    leaves, structure = jax.tree.flatten(shards)
    whole = [
        jax.lax.all_gather(x, FSDP, axis=int(dim), tiled=True) if dim >= 0 else x
        for x, dim in zip(leaves, dims, strict=True)
    ]
    return nnx.merge(graph, jax.tree.unflatten(structure, whole))


class GatheredLayer(nnx.Module):
    """A layer of an encoder whose parameters are gathered only while it runs."""

    def __init__(self, layer: nnx.Module, pattern: nnx.Module):
        self.layer = layer
        self._dims = tuple(int(d) for d in jax.tree.leaves(nnx.split(pattern)[1]))

    def __call__(self, x: Any, **settings: Any) -> Float[Array, "batch outputs hidden"]:
        """Runs the layer."""
        graph, shards = nnx.split(self.layer)
        outputs = settings.pop("outputs")
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

        def run(shards: Any, x: Any, settings: dict[str, Any]) -> Array:
            layer: Any = _gather_module(nnx.merge(graph, shards), self._dims)
            return layer(x, **settings, outputs=outputs)

        return jax.checkpoint(run, policy=policy)(shards, x, settings)


class Traffic(NamedTuple):
    """Bytes that a device receives over `fsdp` for one chunk of every stage."""

    forward: float
    """Parameters, for the forward pass."""
    backward: float
    """Parameters, for the recomputation and the backward pass."""
    scattered: float
    """Gradients."""


def chunk_traffic(params: Any, mesh: Mesh) -> Traffic:
    """Communication that sharding along `fsdp` costs per chunk of texts.

    A device receives (n - 1) / n of each parameter from the n - 1 others: once in the
    forward pass; once in the backward pass, but layers twice, for the recomputation of
    their chunk and for its gradients (except biases that no gradient needs). Gradients
    are scattered once. For two stages, which have chunks of their own, it is the sum.
    """
    count, layers, all_bytes = mesh.shape[FSDP], 0, 0
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if split_dim(x.shape, mesh.size) is not None:
            size = x.size * x.dtype.itemsize
            all_bytes += size
            layers += size * ("layers" in jax.tree_util.keystr(path))
    share = (count - 1) / count
    return Traffic(share * all_bytes, share * (all_bytes + layers), share * all_bytes)
