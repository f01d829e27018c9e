"""Useful FLOPs of a step, and the matrix product rate that a device reaches."""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Int
from numpy import ndarray

from cdejax.models import BiEncoder, Encoder, TrainableModel

Lengths = Int[ndarray, "texts"]


def useful_flops(
    model: TrainableModel, texts: Lengths, context: Lengths | None = None
) -> float:
    """3 times the matrix FLOPs of the forward pass over real tokens alone.

    Nothing that is computed twice, or for padding, counts. A contextual encoder's
    second stage reads context and soft tokens in front of every text: they count, as
    in a plain implementation, in every layer and for every text.

    Args:
      model: with the sizes; may be abstract.
      texts: lengths of queries and documents.
      context: lengths of the first stage's documents (contextual encoders).
    """
    if model.kind == "biencoder":
        return 3 * _embed(model, texts)
    assert context is not None
    front = len(context) + model.config.soft_tokens
    second = encode_flops(model.backbone, texts + front)
    heads = 2 * weights(model.output_projection) * len(texts)
    return 3 * (
        _embed(model.first, context)
        + second
        + heads
        + 2 * weights(model.prompt_projection)
    )


def encode_flops(encoder: Encoder, lengths: Lengths) -> float:
    """Forward matrix FLOPs of texts: 2 weights a token, 4 length² hidden a layer."""
    lengths = lengths.astype(float)
    linear = 2 * sum(map(weights, encoder.layers)) * lengths.sum()
    square = (lengths * lengths).sum()
    return linear + 4 * square * encoder.hidden_size * len(encoder.layers)


def weights(module: Any) -> int:
    """Entries of a module's matrices."""
    return sum(x.size for x in jax.tree.leaves(nnx.state(module)) if x.ndim == 2)


def _embed(model: BiEncoder, lengths: Lengths) -> float:
    head = 0 if model.head is None else 2 * weights(model.head) * len(lengths)
    return encode_flops(model.encoder, lengths) + head


def ceiling(sizes: tuple[int, ...], device: Any, repeats: int = 20) -> dict[int, float]:
    """FLOP/s of bfloat16 products of square matrices of random numbers, by size."""
    return {size: _product_rate(size, device, repeats) for size in sizes}


def _product_rate(size: int, device: Any, repeats: int) -> float:
    keys = jax.device_put(jax.random.split(jax.random.key(0)), device)
    normal = functools.partial(
        jax.random.normal, shape=(size, size), dtype=jnp.bfloat16
    )
    left, right = normal(keys[0]), normal(keys[1])
    product = jax.jit(jnp.matmul)
    for _ in range(3):
        product(left, right).block_until_ready()
    start = time.perf_counter()
    for _ in range(repeats):
        result = product(left, right)
    result.block_until_ready()
    return repeats * 2 * size**3 / (time.perf_counter() - start)
