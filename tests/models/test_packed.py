"""Texts that share rows get the vectors that each gets alone."""

import jax
import numpy as np
import pytest
from flax import nnx

from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.models.packed import pool_segments, segment_positions
from cdejax.models.pooling import pool
from tests.training.toy import OTHERS, SIZES, VOCABULARY, make_model

MODES = ["mean", "cls", "max", "last", "weightedmean", "mean_sqrt_len", "cls+mean"]
ROWS = [[5, 1, 7], [12], [1, 5, 1, 5]]
"""Lengths of the texts in each row of 16; few distinct ones, each is compiled."""


def packed(rows=ROWS, width=16, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.zeros((len(rows), width), np.int32)
    segments, texts = np.zeros_like(ids), []
    for row, lengths in enumerate(rows):
        end = 0
        for slot, length in enumerate(lengths):
            text = rng.integers(1, VOCABULARY, length)
            place = slice(end, end + length)
            ids[row, place], segments[row, place] = text, slot + 1
            texts.append((row, slot, text))
            end += length
    return ids, segments, texts


def test_positions_start_anew_in_every_text():
    _, segments, _ = packed()
    expected = [[*range(5), 0, *range(7)], [*range(12)], [0, *range(5)] * 2]
    found = np.asarray(segment_positions(segments))
    for row, positions in enumerate(expected):
        np.testing.assert_array_equal(found[row, : len(positions)], positions)
        assert not found[row, len(positions) :].any()


pool_alone = jax.jit(pool, static_argnums=2)


@pytest.mark.parametrize("mode", MODES)
def test_pools_each_text_as_if_alone(mode):
    _, segments, texts = packed()
    hidden = np.random.default_rng(0).normal(size=(3, 16, 6)).astype(np.float32)
    found = jax.jit(pool_segments, static_argnums=(2, 3))(hidden, segments, 5, mode)
    assert np.isfinite(found).all()
    for row, slot, _ in texts:
        alone = hidden[row][segments[row] == slot + 1][None]
        expected = pool_alone(alone, np.ones(alone.shape[:2], bool), mode)[0]
        np.testing.assert_allclose(found[row, slot], expected, atol=1e-6)


def test_rows_may_be_longer_than_what_was_learned():
    """Seven positions suffice for texts of seven tokens, whatever the padding."""
    config = BertConfig(**SIZES, max_position_embeddings=7)
    model = BiEncoder(Bert(config, nnx.Rngs(0)))
    embeds_as_if_alone(*nnx.split(model), *packed([[5, 1, 7], [5]], width=32))


@pytest.mark.parametrize("kind", ["biencoder", *OTHERS])
def test_embeds_each_text_as_if_alone(kind):
    embeds_as_if_alone(*make_model(kind), *packed())


def embeds_as_if_alone(graph, params, ids, segments, texts):
    def embed(params, text):
        return nnx.merge(graph, params)(text[None])[0]

    def share(params):
        return nnx.merge(graph, params).packed(ids, segments, 5)

    found, alone = jax.jit(share)(params), jax.jit(embed)
    for row, slot, text in texts:
        np.testing.assert_allclose(found[row, slot], alone(params, text), atol=2e-5)
