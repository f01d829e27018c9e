"""Models that no device holds whole: layers are gathered along `fsdp` when they run."""

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
    """The model, from parts along `fsdp`: layers are gathered when they run.

    Inside `shard_map`. Differentiated, each gather becomes a reduce-scatter. A layer's
    forward pass is gathered again in the backward pass, where matrix products are kept
    and the rest is computed again.

    Args:
      graphdef: of the model.
      params: its parameters, or this device's parts of them.
      dims: a pytree of the same structure: the dimension along which each parameter is
        split, -1 for those that are not.
      chunk: arrays of the chunk that the model is to encode.
    """
    if jax.lax.axis_size(FSDP) == 1:
        return nnx.merge(graphdef, params)
    # Gathers that depend on no chunk would be made once, before the loop over chunks,
    # and the whole model would stay on every device.
    params, _ = jax.lax.optimization_barrier((params, chunk))
    model = nnx.merge(graphdef, params)
    pattern = nnx.merge(graphdef, dims)
    encoders, patterns = (list(one.encoders.values()) for one in (model, pattern))
    layers = [
        [GatheredLayer(*pair) for pair in zip(one.layers, other.layers, strict=True)]
        for one, other in zip(encoders, patterns, strict=True)
    ]
    for encoder in (*encoders, *patterns):
        encoder.layers = nnx.List([])
    model = _gather_module(model, jax.tree.leaves(nnx.split(pattern)[1]))
    for encoder, wrapped in zip(model.encoders.values(), layers, strict=True):
        encoder.layers = nnx.List(wrapped)
    return model


def _gather_module(module: N, dims: Sequence[int]) -> N:
    """A module whose parameters are whole; `dims` are those of its leaves."""
    graph, shards = nnx.split(module)
    leaves, structure = jax.tree.flatten(shards)
    whole = [
        jax.lax.all_gather(x, FSDP, axis=int(dim), tiled=True) if dim >= 0 else x
        for x, dim in zip(leaves, dims, strict=True)
    ]
    return nnx.merge(graph, jax.tree.unflatten(structure, whole))


class GatheredLayer(nnx.Module):
    """An encoder's layer whose parameters come together for as long as it runs."""

    def __init__(self, layer: nnx.Module, pattern: nnx.Module):
        self.layer = layer
        self._dims = tuple(int(d) for d in jax.tree.leaves(nnx.split(pattern)[1]))

    def __call__(self, x: Any, **settings: Any) -> Float[Array, "batch outputs hidden"]:
        """The layer's step."""
        graph, shards = nnx.split(self.layer)
        outputs = settings.pop("outputs")
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

        def run(shards: Any, x: Any, settings: dict[str, Any]) -> Array:
            layer: Any = _gather_module(nnx.merge(graph, shards), self._dims)
            return layer(x, **settings, outputs=outputs)

        return jax.checkpoint(run, policy=policy)(shards, x, settings)


class Traffic(NamedTuple):
    """Bytes that a device receives over `fsdp` for a chunk of every stage."""

    forward: float
    """Parameters, to encode the chunk."""
    backward: float
    """Parameters, to encode it again and differentiate."""
    scattered: float
    """Gradients."""


def chunk_traffic(params: Any, mesh: Mesh) -> Traffic:
    """What sharing parameters along `fsdp` costs for each chunk of texts.

    A device receives (n - 1) / n of each parameter from the n - 1 others: in the
    forward pass once; in the backward pass once, and layers twice, when their chunk is
    encoded again and when they are differentiated (less a bias that no gradient needs).
    Gradients go back once. Of two stages, each of which has chunks of its own, the sum.
    """
    count, layers, all_bytes = mesh.shape[FSDP], 0, 0
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if split_dim(x.shape, mesh.size) is not None:
            size = x.size * x.dtype.itemsize
            all_bytes += size
            layers += size * ("layers" in jax.tree_util.keystr(path))
    share = (count - 1) / count
    return Traffic(share * all_bytes, share * (all_bytes + layers), share * all_bytes)
