"""Several texts packed in a row, with segments, against each text alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import MPNet, Roberta
from tests.models.oracles import TOLERANCE, run, sharpen

ROWS = [[24, 5, 1, 13], [30, 17], [1, 48]]
WIDTH = 50


def packed(rows=ROWS, width=WIDTH, seed=0, vocab=96):
    """Ids, segments (0 behind the texts) and positions of rows of texts."""
    rng = np.random.default_rng(seed)
    shape = (len(rows), width)
    ids, segments, positions = (np.zeros(shape, np.int32) for _ in range(3))
    for row, lengths in enumerate(rows):
        start = 0
        for number, length in enumerate(lengths, 1):
            where = (row, slice(start, start + length))
            ids[where] = rng.integers(2, vocab, length)
            segments[where], positions[where] = number, np.arange(length)
            start += length
    return ids, segments, positions


def texts(rows=ROWS):
    """(row, slice) of each text."""
    for row, lengths in enumerate(rows):
        ends = np.cumsum(lengths)
        for start, end in zip(ends - lengths, ends, strict=True):
            yield row, slice(int(start), int(end))


@functools.partial(jax.jit, static_argnums=0)
def _encode(graph, state, ids, segments, positions):
    encoder = nnx.merge(graph, state)
    embeddings = encoder.embed(ids, positions)
    return encoder.encode(embeddings, segments=segments, positions=positions)


def encode(encoder, *args):
    return np.asarray(_encode(*nnx.split(encoder), *args))


def alone(encoder, ids, segments):
    """Hidden states of each text by itself, as rows of one padded batch."""
    where = list(texts())
    batch = np.zeros((len(where), WIDTH), np.int32)
    lengths = np.array([part.stop - part.start for _, part in where])
    for index, (row, part) in enumerate(where):
        batch[index, : lengths[index]] = ids[row, part]
    return np.asarray(run(encoder, batch, lengths=lengths)), where


def test_packed_texts_have_the_states_of_each_text_alone(pair):
    encoder = sharpen(pair[0])
    ids, segments, positions = packed()
    got = encode(encoder, ids, segments, positions)
    assert np.isfinite(got).all()
    expected, where = alone(encoder, ids, segments)
    for index, (row, part) in enumerate(where):
        length = part.stop - part.start
        gap = np.abs(got[row, part] - expected[index, :length]).max()
        assert gap <= TOLERANCE, (row, part)


def test_texts_read_each_other_without_segments(encoder):
    """Or the test above would not see segments ignored."""
    ids, segments, positions = packed()
    mixed = encode(encoder, ids, np.minimum(segments, 1), positions)
    gap = np.abs(mixed - encode(encoder, ids, segments, positions))
    assert gap[0, 24:43].max() > 0.1


def test_gradients_of_packed_texts_are_those_of_texts_alone(encoder):
    ids, segments, positions = packed()
    graph, state = nnx.split(encoder)
    where = list(texts())
    weights = np.random.default_rng(1).normal(size=(len(where), encoder.hidden_size))

    def together(state):
        hidden = _encode(graph, state, ids, segments, positions)
        parts = [hidden[row, part].mean(0) for row, part in where]
        return (jnp.stack(parts) * weights).sum()

    def apart(state):
        model, total = nnx.merge(graph, state), 0.0
        batch = np.stack([np.resize(ids[row, part], WIDTH) for row, part in where])
        lengths = np.array([part.stop - part.start for _, part in where])
        hidden = model(batch, lengths=lengths)
        for index, length in enumerate(lengths):
            total += (hidden[index, :length].mean(0) * weights[index]).sum()
        return total

    got = jax.tree.leaves(jax.jit(jax.grad(together))(state))
    want = jax.tree.leaves(jax.jit(jax.grad(apart))(state))
    size = np.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in want))
    for ours, theirs in zip(got, want, strict=True):
        least = max(float(jnp.linalg.norm(theirs.ravel())), 1e-3 * size)
        assert float(jnp.linalg.norm((ours - theirs).ravel())) <= 1e-5 * least


def test_padding_alone_in_a_row_is_finite_with_gradients(encoder):
    ids, segments, positions = packed()
    segments[1] = 0

    @jax.grad
    def gradient(state):
        return jnp.square(_encode(graph, state, ids, segments, positions)[0]).sum()

    graph, state = nnx.split(encoder)
    for leaf in jax.tree.leaves(gradient(state)):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_a_padding_token_in_one_text_moves_no_other(pairs, kind):
    encoder = pairs(kind)[0]
    assert isinstance(encoder, (Roberta, MPNet))
    ids, segments, positions = packed()
    ids[0, 3] = encoder.config.pad_token_id
    got = encode(encoder, ids, segments, positions)
    expected, where = alone(encoder, ids, segments)
    for index, (row, part) in enumerate(where):
        gap = np.abs(got[row, part] - expected[index, : part.stop - part.start]).max()
        assert gap <= TOLERANCE, (row, part)


def test_packed_rows_may_be_longer_than_positions_were_learned(pairs):
    encoder = pairs("bert")[0]
    rows = [[60, 60, 13]]
    ids, segments, positions = packed(rows, 140)
    assert encoder.longest < 140
    assert np.isfinite(encode(encoder, ids, segments, positions)).all()
    with pytest.raises(ValueError, match="140 tokens"):
        encoder.embed(ids)
    with pytest.raises(ValueError, match="rows of 97 tokens"):
        encoder.embed(ids, positions + 37)


def test_only_one_form_of_padding_is_taken(pairs):
    encoder = pairs("bert")[0]
    ids, segments, positions = packed()
    embeddings = encoder.embed(ids, positions)
    with pytest.raises(ValueError, match="mask or segments, not both"):
        encoder.encode(embeddings, mask=segments > 0, segments=segments)
