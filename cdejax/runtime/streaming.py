"""Overlapping work of host threads and devices, with a bounded queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from jax import Array

IN_FLIGHT = 4
"""Number of batches queued on the devices, in addition to the one being fetched."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Yields `function` of every item in order, computed in a thread one item ahead."""
    with ThreadPoolExecutor(1) as pool:
        last: Future[Result] | None = None
        for item in items:
            new = pool.submit(function, item)
            if last is not None:
                yield last.result()
            last = new
        if last is not None:
            yield last.result()


def consume_in_background(
    function: Callable[[Item], None], items: Iterable[Item]
) -> None:
    """Calls `function` with every item in order, while the next item is produced."""
    with ThreadPoolExecutor(1) as pool:
        last: Future[None] | None = None
        for item in items:
            if last is not None:
                last.result()
            last = pool.submit(function, item)
        if last is not None:
            last.result()


def fetch_in_order(
    started: Iterable[tuple[Item, Float[Array, "batch dim"]]],
) -> Iterator[tuple[Item, Float[np.ndarray, "rows dim"]]]:
    """Yields arrays that devices are computing as NumPy arrays, in order.

    Up to `IN_FLIGHT` more are started before one is awaited, so that devices do not
    wait for the host.
    """
    flight: deque[tuple[Item, Float[Array, "batch dim"]]] = deque()
    for item, array in started:
        array.copy_to_host_async()
        flight.append((item, array))
        if len(flight) > IN_FLIGHT:
            yield _fetch(*flight.popleft())
    while flight:
        yield _fetch(*flight.popleft())


def growing_spans(count: int, largest: int) -> Iterator[range]:
    """Splits `count` rows into consecutive spans of up to `largest` rows.

    The first spans are short, so that devices soon have something to do.
    """
    start, size = 0, max(largest // 8, 1)
    while start < count:
        yield range(start, min(start + size, count))
        start, size = start + size, min(2 * size, largest)


def _fetch(
    item: Item, array: Float[Array, "batch dim"]
) -> tuple[Item, Float[np.ndarray, "rows dim"]]:
    return item, np.asarray(array)
