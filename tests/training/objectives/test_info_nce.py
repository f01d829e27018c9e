"""InfoNCE against a float64 NumPy formula on a dense relation matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdejax.config import TrainingConfig
from cdejax.training.objectives import BLOCK, info_nce
from cdejax.training.relation import DocumentColumns, QueryRows, Relation

T = 0.05


def make_batch(seed=0, batch=12, negatives=2, dim=8, known=1, ties=True):
    """Rows with repeated queries, repeated documents, known positives and ties."""
    rng = np.random.default_rng(seed)
    row = np.arange(batch)
    query = rng.integers(0, batch // 2, batch)
    document = rng.integers(100, 100 + batch // 2, batch)
    negative_document = rng.integers(100, 100 + 2 * batch, batch * negatives)
    teacher_q = rng.normal(size=(batch, 4)).astype(np.float32)
    teacher_d = rng.normal(size=(batch * (1 + negatives), 4)).astype(np.float32)
    if ties:
        teacher_d[1::3] = teacher_d[0]
    queries = QueryRows(
        row,
        query,
        document,
        rng.integers(100, 100 + 2 * batch, (batch, known)),
        teacher_q,
        teacher_d[:batch],
    )
    owner = np.concatenate([row, np.repeat(row, negatives)])
    documents = DocumentColumns(
        owner,
        query[owner],
        np.concatenate([document, negative_document]),
        np.arange(len(owner)) < batch,
        (np.arange(len(owner)) < batch) | (rng.random(len(owner)) < 0.8),
        teacher_d,
    )
    vectors = rng.normal(size=(batch + len(owner), dim)).astype(np.float32)
    return vectors[:batch], vectors[batch:], queries, documents


def reference(q, d, queries, documents, *, duplicates, margin):
    """The formula, cell by cell, in float64."""
    q, d = (x.astype(np.float64) for x in (q, d))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    losses, corrects, masked = [], [], []
    for i in range(len(q)):
        positives, denominator, negatives, ignored = [], [], [-1.0], 0
        for j in np.flatnonzero(documents.real):
            s = q[i] @ d[j]
            own = documents.positive[j] and documents.row[j] == queries.row[i]
            answers = (
                documents.document[j] == queries.document[i]
                or (documents.positive[j] and documents.query[j] == queries.query[i])
                or documents.document[j] in queries.known[i]
            )
            false_negative = False
            if margin is not None:
                f = queries.teacher[i].astype(np.float64)
                bar = f @ queries.positive_teacher[i] + margin
                false_negative = f @ documents.teacher[j] >= bar - 1e-6
            if own or (answers and duplicates == "positive"):
                positives.append(s)
                denominator.append(s)
            elif answers or false_negative:
                ignored += 1
            else:
                denominator.append(s)
                negatives.append(s)
            if own:
                own_score = s
        log_z = np.log(np.sum(np.exp(np.array(denominator) / T)))
        losses.append(-np.mean(np.array(positives) / T - log_z))
        corrects.append(own_score > max(negatives))
        masked.append(ignored)
    return np.array(losses), np.array(corrects), np.array(masked)


@pytest.mark.parametrize("duplicates", ["ignore", "positive"])
@pytest.mark.parametrize("margin", [None, 0.0, 0.3])
@pytest.mark.parametrize("negatives", [0, 2])
@pytest.mark.parametrize("block", [1, 5, 36, 4096])
def test_equals_float64_formula(duplicates, margin, negatives, block):
    for seed in range(3):
        batch = make_batch(seed, negatives=negatives)
        terms = info_nce(
            *batch, temperature=T, duplicates=duplicates, margin=margin, block=block
        )
        loss, correct, masked = reference(*batch, duplicates=duplicates, margin=margin)
        np.testing.assert_allclose(terms.loss, loss, rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(terms.correct, correct)
        np.testing.assert_array_equal(terms.masked, masked)
        assert masked.sum() > 0 or (margin is None and duplicates == "positive")


def test_gradient_does_not_depend_on_the_block():
    q, d, queries, documents = make_batch(batch=16)

    def loss(q, d, block):
        terms = info_nce(
            q, d, queries, documents, temperature=T, margin=0.1, block=block
        )
        return terms.loss.mean()

    whole = jax.grad(loss, (0, 1))(q, d, 4096)
    for block in (1, 7, 16):
        cut = jax.grad(loss, (0, 1))(q, d, block)
        for a, b in zip(whole, cut, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_gradient_equals_finite_differences():
    q, d, queries, documents = make_batch(batch=6)
    options = {"duplicates": "ignore", "margin": 0.2}
    grad = jax.grad(
        lambda q: info_nce(
            q, d, queries, documents, temperature=T, block=4, **options
        ).loss.mean()
    )(q)
    step = 1e-5
    for i, j in [(0, 0), (3, 5), (5, 7)]:
        up, down = (q.astype(np.float64) for _ in range(2))
        up[i, j] += step
        down[i, j] -= step
        high, low = (
            reference(x, d, queries, documents, **options)[0].mean() for x in (up, down)
        )
        assert abs((high - low) / (2 * step) - grad[i, j]) < 1e-4


def test_ties_are_masked_and_the_positive_never_is():
    q, d, queries, documents = make_batch(batch=8, negatives=0, ties=False)
    same = documents.teacher.copy()
    same[:] = same[0]
    queries = queries._replace(positive_teacher=same, known=np.full((8, 1), -1))
    documents = documents._replace(teacher=same)
    cells = Relation(margin=0.0).cells(queries, documents)
    assert not np.any(cells.ignored & cells.own)
    assert np.all(cells.ignored | cells.own)
    terms = info_nce(q, d, queries, documents, temperature=T, margin=0.0)
    np.testing.assert_allclose(terms.loss, 0.0, atol=1e-5)
    np.testing.assert_array_equal(terms.hardest, -1.0)


def test_margin_without_vectors_is_refused():
    q, d, queries, documents = make_batch()
    none = np.zeros((len(queries.row), 0), np.float32)
    queries = queries._replace(teacher=none, positive_teacher=none)
    with pytest.raises(ValueError, match="no surrogate vectors"):
        info_nce(q, d, queries, documents, temperature=T, margin=0.0)


def test_memory_stays_far_below_the_full_matrix():
    rows, dim, block = 65_536, 16, TrainingConfig().loss_block
    ids = np.arange(rows)
    none = np.zeros((rows, 0), np.float32)
    queries = QueryRows(ids, ids, ids, np.zeros((rows, 0), int), none, none)
    documents = DocumentColumns(ids, ids, ids, ids >= 0, ids >= 0, none)

    def loss(q, d, block):
        terms = info_nce(q, d, queries, documents, temperature=T, block=block)
        return terms.loss.mean()

    x = jax.ShapeDtypeStruct((rows, dim), jnp.float32)
    compiled = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2).lower(x, x, block)
    sizes = compiled.compile().memory_analysis()
    assert sizes is not None
    assert block == BLOCK
    assert sizes.temp_size_in_bytes < rows * rows * 4 / 16
