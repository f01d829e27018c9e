"""Pooling against plain loops, whatever the padding."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from cdejax.models.pooling import check_pooling, pool, text_positions, token_mask
from cdejax.models.pretrained.st_modules import MODES as MODES_THERE

masks = st.lists(
    st.lists(st.booleans(), min_size=5, max_size=5).filter(any), min_size=1, max_size=4
)


@given(masks, st.sampled_from(["mean", "max", "mean_sqrt_len", "cls", "last"]))
@settings(max_examples=40, deadline=None)
def test_pools_real_tokens_only(rows, pooling):
    mask = np.array(rows)
    hidden = np.random.default_rng(0).normal(size=(*mask.shape, 3)).astype(np.float32)
    hidden[~mask] = np.nan  # padding must not leak, not even times zero
    pick = {
        "mean": lambda x: x.mean(0),
        "max": lambda x: x.max(0),
        "mean_sqrt_len": lambda x: x.sum(0) / np.sqrt(len(x)),
        "cls": lambda x: x[0],
        "last": lambda x: x[-1],
    }
    expected = [pick[pooling](h[m]) for h, m in zip(hidden, mask, strict=True)]
    out = pool(jnp.asarray(hidden), jnp.asarray(mask), pooling)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, np.stack(expected), atol=1e-6)


def test_pools_bfloat16_in_float32():
    hidden = jnp.full((1, 3000, 1), 1.01, jnp.bfloat16)
    out = pool(hidden, jnp.ones((1, 3000), bool), "mean")
    np.testing.assert_allclose(out, np.asarray(hidden[0, :1], np.float32), rtol=1e-6)


MODES = ["mean", "cls", "max", "last", "weightedmean", "mean_sqrt_len"]


@pytest.mark.parametrize("pooling", [*MODES, "mean+cls", "max+weightedmean+max"])
@pytest.mark.parametrize("skip", [None, 2])
def test_equals_sentence_transformers(pooling, skip):
    """Rows of 3, 4, 6 and 8 tokens, padded on either side, a prompt in or out."""
    torch = pytest.importorskip("torch")
    st = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    hidden = np.random.default_rng(0).normal(size=(4, 8, 5)).astype(np.float32)
    lengths = np.array([[3], [4], [6], [8]])
    for mask in (np.arange(8) < lengths, np.arange(8) >= 8 - lengths):
        theirs = st.Pooling(
            5,
            [MODES_THERE[mode] for mode in pooling.split("+")],
            include_prompt=skip is None,
        )
        features = {
            "token_embeddings": torch.tensor(hidden),
            "attention_mask": torch.tensor(mask).long(),
            "prompt_length": skip or 0,
        }
        expected = theirs(features)["sentence_embedding"].numpy()
        out = pool(jnp.asarray(hidden), jnp.asarray(mask), pooling, skip)
        np.testing.assert_allclose(out, expected, atol=1e-6)


def test_each_row_may_skip_another_number():
    hidden = jnp.arange(8.0).reshape(2, 4, 1)
    out = pool(hidden, jnp.ones((2, 4), bool), "cls+mean", np.array([1, 3]))
    assert out.tolist() == [[1, 2], [7, 7]]


@pytest.mark.parametrize("pooling", MODES)
def test_a_row_without_tokens_is_finite(pooling):
    out = np.asarray(pool(jnp.ones((1, 4, 2)), jnp.zeros((1, 4), bool), pooling))
    assert out.tolist() == [[float(pooling == "cls")] * 2]


def test_masks_lengths_and_neither():
    assert token_mask((2, 3), None, None).all()
    by_length = token_mask((2, 3), None, np.array([1, 3]))
    assert by_length.tolist() == [[True, False, False], [True] * 3]
    assert token_mask((1, 2), np.array([[1, 0]]), None).tolist() == [[True, False]]
    with pytest.raises(ValueError, match="not both"):
        token_mask((1, 2), np.array([[1, 0]]), np.array([1]))


def test_positions_count_from_the_first_real_token():
    mask = np.array([[0, 0, 1, 1], [1, 1, 0, 0]], bool)
    assert text_positions(4, mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert text_positions(3, None).tolist() == [0, 1, 2]


def test_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match="'lse' is not one of"):
        check_pooling("mean+lse")
