"""Objectives of every shape give the loss and gradient of their dense float64 formula.

Softmax over rows is `InfoNCE` itself; here are softmax over columns and over both, a
sum over cells, and targets per row. Each is written as a user would write it, and runs
on one device, in blocks, on eight devices gathered, and in the ring.
"""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdejax.training.objectives import (
    NEVER,
    Expectation,
    InfoNCE,
    LogSumExp,
    Objective,
    Sum,
    batch_terms,
    info_nce,
    ring_terms,
)
from cdejax.training.relation import Relation
from cdejax.training.sharding import ROWS, make_mesh
from cdejax.training.step import AXES
from tests.training.objectives.test_info_nce import make_batch

T, BIAS = 0.2, -1.0
RELATION = Relation("positive", margin=1.0)


@dataclass(frozen=True)
class Columns(InfoNCE):
    """Softmax of each document over the queries."""

    by_document = True

    def loss(self, totals, columns):
        return super().loss(columns, {})


@dataclass(frozen=True)
class BothWays(InfoNCE):
    """The mean of both directions."""

    by_document = True

    def loss(self, totals, columns):
        return (super().loss(totals, {}) + super().loss(columns, {})) / 2

    def metrics(self, totals):
        return {"perplexity": jnp.exp(self.loss(totals, totals))}


@dataclass(frozen=True)
class SigLIP(Objective):
    """Binary cross-entropy of every cell (arXiv 2303.15343)."""

    temperature: float
    bias: float
    reductions: ClassVar = {"cells": Sum}

    def values(self, cosine, cells):
        logit = cosine / self.temperature + self.bias
        logit = jnp.where(cells.positive, logit, -logit)
        return {"cells": jnp.where(cells.outside, 0.0, jax.nn.log_sigmoid(logit))}

    def loss(self, totals, columns):
        return -totals["cells"]


@dataclass(frozen=True)
class Distillation(Objective):
    """KL divergence of the softmax from the surrogate's."""

    temperature: float
    reductions: ClassVar = {
        "student": LogSumExp,
        "teacher": LogSumExp,
        "gap": Expectation,
    }
    needs_surrogate = True

    def values(self, cosine, cells):
        student = jnp.where(cells.outside, NEVER, cosine / self.temperature)
        teacher = jnp.where(cells.outside, NEVER, cells.surrogate)
        gap = jnp.where(cells.outside, 0.0, teacher - student)
        return {"student": student, "teacher": teacher, "gap": (teacher, gap)}

    def loss(self, totals, columns):
        return totals["gap"] - totals["teacher"] + totals["student"]


@dataclass(frozen=True)
class MarginMSE(Objective):
    """Squared difference of margins to the own hard negatives (arXiv 2010.02666)."""

    reductions: ClassVar = {"own_gap": Sum, "count": Sum, "gap": Sum, "square": Sum}
    needs_surrogate = needs_hard_negatives = True

    def values(self, cosine, cells):
        gap = cosine - cells.surrogate
        negative = jnp.where(cells.own_negative, gap, 0.0)
        return {
            "own_gap": jnp.where(cells.own, gap, 0.0),
            "count": cells.own_negative,
            "gap": negative,
            "square": negative**2,
        }

    def loss(self, totals, columns):
        own, count = totals["own_gap"], totals["count"]
        total = count * own**2 - 2 * own * totals["gap"] + totals["square"]
        return total / jnp.maximum(count, 1)


def plain_cells(queries, documents):
    """Own, own negative, positive and ignored cells, by loops."""
    shape = len(queries.row), len(documents.row)
    own, mined, positive, ignored = (np.zeros(shape, bool) for _ in range(4))
    score = queries.teacher.astype(float) @ documents.teacher.astype(float).T
    for i, j in np.ndindex(*shape):
        if not documents.real[j]:
            continue
        same = documents.row[j] == queries.row[i]
        own[i, j] = same and documents.positive[j]
        mined[i, j] = same and not documents.positive[j]
        answers = (
            documents.document[j] == queries.document[i]
            or (documents.positive[j] and documents.query[j] == queries.query[i])
            or documents.document[j] in queries.known[i]
        )
        positive[i, j] = own[i, j] or answers
        bar = queries.teacher[i].astype(float) @ queries.positive_teacher[i]
        near = score[i, j] >= bar + RELATION.margin - 1e-6
        ignored[i, j] = near and not positive[i, j]
    return own, mined, positive, ignored, ~documents.real | ignored, score


def _log_sum(x, axis):
    peak = x.max(axis, keepdims=True)
    return (peak + np.log(np.exp(x - peak).sum(axis, keepdims=True))).squeeze(axis)


def dense(name, q, d, cells):
    """The loss of each query in float64, on the whole score matrix."""
    own, mined, positive, _, outside, score = cells
    q, d = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, d))
    cosine = q @ d.T
    logits = np.where(outside, -np.inf, cosine / T)
    at = own.argmax(1)
    rows = _log_sum(logits, 1) - np.mean(logits, 1, where=positive)
    chosen = logits[:, at]
    columns = _log_sum(chosen, 0) - np.mean(chosen, 0, where=positive[:, at])
    if name == "rows":
        return rows
    if name == "columns":
        return columns
    if name == "both":
        return (rows + columns) / 2
    if name == "siglip":
        z = (cosine / T + BIAS) * np.where(positive, 1, -1)
        return np.where(outside, 0, np.log1p(np.exp(-z))).sum(1)
    if name == "kl":
        teacher = np.where(outside, -np.inf, score)
        log_t = teacher - _log_sum(teacher, 1)[:, None]
        log_s = logits - _log_sum(logits, 1)[:, None]
        gap = np.subtract(log_t, log_s, where=~outside, out=np.zeros_like(log_t))
        return (np.exp(log_t) * gap).sum(1)
    gap = cosine - score
    error = gap[np.arange(len(q)), at][:, None] - gap
    return np.where(mined, error**2, 0).sum(1) / np.maximum(mined.sum(1), 1)


OBJECTIVES = {
    "rows": InfoNCE(T),
    "columns": Columns(T),
    "both": BothWays(T),
    "siglip": SigLIP(T, BIAS),
    "kl": Distillation(T),
    "mse": MarginMSE(),
}


@functools.cache
def batch():
    """16 rows with hard negatives; own positives lie on other devices than queries."""
    vectors = make_batch(seed=4, batch=16, negatives=2, dim=4, ties=False)
    q, d, queries, documents = vectors
    shuffled = np.random.default_rng(0).permutation(len(documents.row))
    documents = type(documents)(*(x[shuffled] for x in documents))
    return q, d[shuffled], queries, documents


@functools.cache
def expected(name):
    """Losses, and the gradient of their mean by central differences, in float64."""
    q, d, queries, documents = batch()
    cells = plain_cells(queries, documents)
    both = np.concatenate([q, d]).astype(np.float64)
    mean = lambda x: dense(name, x[: len(q)], x[len(q) :], cells).mean()  # noqa: E731
    gradient = np.zeros_like(both)
    for at in np.ndindex(*both.shape):
        step = np.zeros_like(both)
        step[at] = 1e-5
        gradient[at] = (mean(both + step) - mean(both - step)) / 2e-5
    loss = dense(name, q.astype(np.float64), d.astype(np.float64), cells)
    return loss, gradient[: len(q)], gradient[len(q) :]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    ("devices", "ring", "block"),
    [(1, False, 4096), (1, False, 7), (8, False, 5), (8, True, 4), (8, True, 4096)],
)
def test_equals_the_dense_formula(name, devices, ring, block):
    q, d, queries, documents = batch()
    how = OBJECTIVES[name], RELATION
    terms = functools.partial(
        ring_terms if ring else batch_terms, *how, axes=AXES, block=block
    )
    mesh = make_mesh(jax.devices()[:devices])

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
    def losses(q, d, queries, documents):
        return terms(q, d, queries, documents).loss

    def mean(q, d):
        loss = losses(q, d, queries, documents)
        return loss.mean(), loss

    gradients, loss = jax.jit(jax.grad(mean, (0, 1), has_aux=True))(q, d)
    wanted = expected(name)
    np.testing.assert_allclose(loss, wanted[0], rtol=2e-5, atol=2e-5)
    for found, right in zip(gradients, wanted[1:], strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-6)


def test_metrics_of_an_objective_are_its_own_and_constant():
    q, d, queries, documents = batch()
    terms = batch_terms(BothWays(T), RELATION, q, d, queries, documents)
    rows = dense("rows", q, d, plain_cells(queries, documents))
    np.testing.assert_allclose(terms.metrics["perplexity"], np.exp(rows), rtol=1e-4)

    def metric(q):
        terms = batch_terms(BothWays(T), RELATION, q, d, queries, documents)
        return terms.metrics["perplexity"].sum()

    assert not jax.grad(metric)(q).any()


def test_surrogate_scores_without_vectors_are_refused():
    q, d, queries, documents = batch()
    none = np.zeros((len(queries.row), 0), np.float32)
    queries = queries._replace(teacher=none, positive_teacher=none)
    with pytest.raises(ValueError, match="the objective needs surrogate scores"):
        batch_terms(Distillation(T), Relation(), q, d, queries, documents)


def test_info_nce_alone_uses_plain_in_batch_negatives():
    """Document i answers query i; further documents are negatives of all."""
    rng = np.random.default_rng(0)
    q, d = rng.normal(size=(4, 8)), rng.normal(size=(7, 8))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, d)]
    logits = unit[0] @ unit[1].T / T
    right = _log_sum(logits, 1) - np.diag(logits)
    q, d = q.astype(np.float32), d.astype(np.float32)
    terms = info_nce(q, d, temperature=T)
    np.testing.assert_allclose(terms.loss, right, rtol=1e-5)
    with pytest.raises(ValueError, match="7 queries, but 4 documents"):
        info_nce(d, q, temperature=T)
    _, _, queries, _ = batch()
    with pytest.raises(ValueError, match="both `queries` and `documents`"):
        info_nce(q, d, queries, temperature=T)
