"""Bootstrap intervals where the answer is known."""

import numpy as np
import pytest

from cdejax.retrieval import bootstrap
from cdejax.retrieval.bootstrap import interval, paired


def test_coin_tosses_give_binomial_quantiles():
    # resampled means of 100 balanced 0/1 values are Binomial(100, 1/2) / 100,
    # whose 2.5 % and 97.5 % quantiles are 0.40 and 0.60
    found = interval(np.arange(100) % 2, resamples=20_000)
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.40, abs=0.0101)
    assert found.high == pytest.approx(0.60, abs=0.0101)


def test_many_values_give_the_normal_interval():
    values = np.random.default_rng(3).gamma(2, size=2000)
    half = 1.959964 * values.std() / np.sqrt(len(values))
    found = interval(values, resamples=10_000)
    assert found.low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.05 * half)


def test_ninety_five_of_a_hundred_intervals_cover_the_mean():
    rng = np.random.default_rng(4)
    samples = rng.normal(1.0, 2.0, size=(400, 60))
    found = [interval(sample, 400, seed=i) for i, sample in enumerate(samples)]
    covered = np.mean([f.low <= 1.0 <= f.high for f in found])
    assert 0.91 < covered < 0.98


def test_seeded_and_independent_of_memory_blocks(monkeypatch):
    values = np.random.default_rng(5).random(37)
    first = interval(values, 500, seed=7)
    assert first == interval(values, 500, seed=7)
    assert first != interval(values, 500, seed=8)
    monkeypatch.setattr(bootstrap, "_CELLS", 100)
    assert first == interval(values, 500, seed=7)


def test_pairs_are_resampled_together():
    values = np.random.default_rng(6).random(50)
    assert paired(values + 0.25, values) == pytest.approx((0.25, 0.25, 0.25))
    wide = interval(values + 0.25)
    assert wide.high - wide.low > 0.1


def test_one_query_has_no_width():
    assert interval(np.array([0.5])) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: interval(np.zeros(0)), "one finite number per query"),
        (lambda: interval(np.array([np.nan])), "one finite number per query"),
        (lambda: interval(np.zeros(3), resamples=1), "resamples 1"),
        (lambda: interval(np.zeros(3), level=95), "level 95"),
        (lambda: paired(np.zeros(3), np.zeros(4)), "same queries"),
    ],
)
def test_refuses(call, match):
    with pytest.raises(ValueError, match=match):
        call()
