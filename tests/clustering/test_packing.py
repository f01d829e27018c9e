import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.clustering.packing import Group, Tour, left_out, pack_epoch


def greedy(points, start):
    """The tour in plain Python and float64."""
    order, left = [start], set(range(len(points))) - {start}
    while left:
        here = points[order[-1]].astype(np.float64)
        distance = {i: ((points[i] - here) ** 2).sum() for i in left}
        order.append(min(left, key=lambda i: distance[i]))
        left.remove(order[-1])
    return order


@pytest.mark.parametrize("count", [1, 2, 3, 60, 300])
def test_tour_is_the_brute_force_greedy_one(count):
    points = np.random.default_rng(count).normal(size=(count, 5)).astype(np.float32)
    tour = Tour(points)
    for start in {0, count // 2, count - 1}:
        assert tour.order(start).tolist() == greedy(points, start)


def test_tour_searches_on_when_all_candidates_are_used_up(monkeypatch):
    monkeypatch.setattr("cdejax.clustering.packing.NEIGHBOURS", 2)
    points = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    assert Tour(points).order(7).tolist() == greedy(points, 7)


def test_tour_visits_equal_centroids_once():
    order = Tour(np.ones((130, 4), np.float32)).order(5)
    assert sorted(order.tolist()) == list(range(130))


def test_tour_of_many_centroids():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(20_000, 8)).astype(np.float32)
    order = Tour(points).order(3)
    assert order[0] == 3
    np.testing.assert_array_equal(np.sort(order), np.arange(20_000))
    steps = np.linalg.norm(np.diff(points[order], axis=0), axis=1)
    random = np.linalg.norm(np.diff(points, axis=0), axis=1)
    assert steps.mean() < random.mean() / 2


@st.composite
def plans(draw):
    batch = draw(st.integers(1, 9))
    sizes = draw(st.lists(st.integers(batch, 60), min_size=1, max_size=4))
    clusters = draw(st.integers(1, 12))
    order = draw(st.sampled_from(["random", "tsp_greedy", "whole"]))
    return batch, sizes, clusters, order, draw(st.integers(0, 99))


def make_groups(sizes, clusters, order, seed):
    rng = np.random.default_rng(seed)
    domain = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    cluster = domain * clusters + rng.integers(0, clusters, len(domain))
    centroid = rng.normal(size=(clusters * len(sizes), 4)).astype(np.float32)
    groups = []
    for number in range(len(sizes)):
        rows = np.flatnonzero(domain == number)
        if order == "whole":
            groups.append(Group.whole(str(number), rows))
        else:
            groups.append(
                Group.clustered(str(number), rows, cluster[rows], centroid, order)
            )
    return groups, domain


@settings(deadline=None, max_examples=150)
@given(plans())
def test_epochs_keep_what_a_plan_promises(plan):
    batch, sizes, clusters, order, seed = plan
    groups, domain = make_groups(sizes, clusters, order, seed)
    for epoch in range(3):
        steps = pack_epoch(groups, batch, seed, epoch)
        assert steps.dtype == np.int32
        assert steps.shape == (sum(size // batch for size in sizes), batch)
        assert len(np.unique(steps)) == steps.size  # every row at most once
        assert (domain[steps] == domain[steps[:, :1]]).all()  # one domain a batch
        used = np.bincount(domain[steps.ravel()], minlength=len(sizes))
        np.testing.assert_array_equal(used, [s - s % batch for s in sizes])
        np.testing.assert_array_equal(steps, pack_epoch(groups, batch, seed, epoch))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 40), st.integers(0, 100), st.integers(0, 50), st.integers(0, 9))
def test_consecutive_epochs_leave_out_different_rows(batch, more, epoch, seed):
    rows = batch + more
    now, then = (set(left_out(rows, batch, seed, e)) for e in (epoch, epoch + 1))
    assert len(now) == len(then) == rows % batch
    assert not now & then


def test_rows_are_left_out_equally_often():
    counts = np.zeros(103, int)
    for epoch in range(103):
        counts[left_out(103, 10, 0, epoch)] += 1
    assert counts.min() == counts.max() == 3


@pytest.mark.parametrize("order", ["random", "tsp_greedy", "whole"])
def test_epochs_and_seeds_differ(order):
    groups, _ = make_groups([400, 300], 12, order, 0)
    batches = [
        {frozenset(step) for step in pack_epoch(groups, 20, seed, epoch).tolist()}
        for seed, epoch in [(0, 0), (0, 1), (0, 2), (1, 0)]
    ]
    for i, one in enumerate(batches):
        for other in batches[:i]:
            assert len(one & other) < 5


def test_batches_of_domains_alternate():
    groups, domain = make_groups([500, 500], 5, "random", 0)
    of_step = domain[pack_epoch(groups, 10, 0, 0)[:, 0]]
    assert 20 < np.count_nonzero(np.diff(of_step)) < 80


def test_large_clusters_fill_batches_and_small_ones_join_near_neighbours():
    # Eight clusters of four rows on a line, and a cluster of 64 far off.
    centroid = np.array([[i, 0] for i in range(8)] + [[1000, 0]], np.float32)
    cluster = np.concatenate([np.repeat(np.arange(8), 4), np.full(64, 8)])
    rows = np.arange(len(cluster))
    group = Group.clustered("a", rows, cluster, centroid, "tsp_greedy")
    for epoch in range(5):
        steps = pack_epoch([group], 8, 0, epoch)
        of_step = [np.unique(cluster[step]) for step in steps]
        assert sum(ids.tolist() == [8] for ids in of_step) == 8
        # However the tour starts, at most one batch spans its jump back.
        joined = [np.ptp(ids) for ids in of_step if ids[-1] < 8]
        assert len(joined) == 4
        assert sum(gap == 1 for gap in joined) >= 3


def test_rows_of_a_cluster_are_dealt_anew_each_epoch():
    cluster = np.zeros(64, int)
    centroid = np.zeros((1, 2), np.float32)
    group = Group.clustered("a", np.arange(64), cluster, centroid, "tsp_greedy")
    first, second = (pack_epoch([group], 16, 0, epoch) for epoch in (0, 1))
    assert {frozenset(s) for s in first.tolist()} != {
        frozenset(s) for s in second.tolist()
    }
