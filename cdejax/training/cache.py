"""Gradient cache: large batches through small chunks, exactly.

Only embeddings survive the forward pass; the backward pass encodes each chunk again
(Gao et al. 2021, arXiv 2101.06983). In JAX this is a scan over checkpointed encoders
under plain `jax.value_and_grad`, so stages compose: a second stage that reads the
embeddings of a first one accumulates their cotangent by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cdejax.typing import AnyArray


class Chunks(NamedTuple):
    """Right-padded texts of one width, in chunks."""

    ids: Int[AnyArray, "chunks chunk width"]
    """Token ids."""
    lengths: Int[AnyArray, "chunks chunk"]
    """Real tokens of each text (1 for rows that only fill up the last chunk)."""
    rows: Int[AnyArray, "chunks chunk"]
    """Number of the text in the global batch, for random keys of its own."""


def encode_cached(
    encode: Callable[[Chunks], Float[Array, "chunk dim"]], groups: Sequence[Chunks]
) -> Float[Array, "texts dim"]:
    """Encodes texts chunk by chunk; differentiable, at the memory of one chunk.

    Args:
      encode: embeds one chunk (`ids [chunk, width]`, `lengths [chunk]`,
        `rows [chunk]`); what it closes over is differentiated, too.
      groups: the texts, chunks of one width together.

    Returns:
      One embedding per row, chunks laid end to end.
    """
    return jnp.concatenate([_encode_group(encode, group) for group in groups])


def _encode_group(
    encode: Callable[[Chunks], Float[Array, "chunk dim"]], group: Chunks
) -> Float[Array, "rows dim"]:
    recomputed = jax.checkpoint(encode, prevent_cse=False)  # scan keeps them apart
    _, vectors = jax.lax.scan(lambda _, chunk: (None, recomputed(chunk)), None, group)
    return vectors.reshape(-1, vectors.shape[-1])
