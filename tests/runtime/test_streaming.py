"""Host and devices side by side: order, bounds and errors, on events, not on time."""

import threading

import pytest

from cdejax.runtime import streaming
from cdejax.runtime.streaming import (
    consume_in_background,
    fetch_in_order,
    growing_spans,
    prefetch,
)


def test_ahead_works_on_the_next_item_while_one_is_used():
    begun = {i: threading.Event() for i in range(4)}

    def work(i):
        begun[i].set()
        return 10 * i

    for i, result in enumerate(prefetch(work, range(4))):
        assert result == 10 * i
        assert i == 3 or begun[i + 1].wait(10)
        assert i > 1 or not begun[i + 2].is_set()  # one ahead, no more


def test_behind_takes_one_item_while_the_next_is_made():
    seen, second_made = [], threading.Event()

    def items():
        yield 0
        second_made.set()
        yield 1

    def take(i):
        assert second_made.wait(10)
        seen.append(i)

    consume_in_background(take, items())
    assert seen == [0, 1]


@pytest.mark.parametrize("bad", [0, 2])
def test_errors_in_the_thread_reach_the_caller(bad):
    def work(i):
        if i == bad:
            raise ValueError(f"item {i}")

    with pytest.raises(ValueError, match=f"item {bad}"):
        list(prefetch(work, range(3)))
    with pytest.raises(ValueError, match=f"item {bad}"):
        consume_in_background(work, range(3))


class Lazy:
    """An array that says when it was asked for."""

    def __init__(self, number, log):
        self.number, self.log = number, log
        log.append(("start", number))

    def copy_to_host_async(self):
        pass

    def __array__(self, dtype=None, copy=None):
        import numpy as np

        self.log.append(("fetch", self.number))
        return np.array([self.number])


def test_a_bounded_number_of_batches_is_in_flight(monkeypatch):
    monkeypatch.setattr(streaming, "IN_FLIGHT", 2)
    log: list = []
    started = ((i, Lazy(i, log)) for i in range(6))
    found = [(i, int(array[0])) for i, array in fetch_in_order(started)]  # type: ignore[arg-type]
    assert found == [(i, i) for i in range(6)]
    pending = 0
    for what, _ in log:
        pending += 1 if what == "start" else -1
        assert pending <= 3
    assert log[:4] == [("start", 0), ("start", 1), ("start", 2), ("fetch", 0)]


def test_spans_are_consecutive_and_grow():
    parts = list(growing_spans(100, 32))
    assert [len(part) for part in parts] == [4, 8, 16, 32, 32, 8]
    assert [i for part in parts for i in part] == list(range(100))
    assert list(growing_spans(0, 32)) == []
