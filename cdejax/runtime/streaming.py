"""Work of the host and of the devices at the same time, in bounded amounts."""

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
"""Batches that the devices have before them, beside the one that is fetched."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """`function` of every item, in order, in a thread that is one item ahead."""
    with ThreadPoolExecutor(1) as pool:
        last: Future[Result] | None = None
        for item in items:
            new = pool.submit(function, item)
            if last is not None:
                yield last.result()
            last = new
        if last is not None:
            yield last.result()


def behind(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Calls `function` with every item, in order, while the next one is being made."""
    with ThreadPoolExecutor(1) as pool:
        last: Future[None] | None = None
        for item in items:
            if last is not None:
                last.result()
            last = pool.submit(function, item)
        if last is not None:
            last.result()


def fetched(
    started: Iterable[tuple[Item, Float[Array, "batch dim"]]],
) -> Iterator[tuple[Item, Float[np.ndarray, "rows dim"]]]:
    """Arrays that devices are computing, as NumPy's, in order.

    Up to `IN_FLIGHT` more are started before one is waited for, so that devices need
    not wait for the host.
    """
    flight: deque[tuple[Item, Float[Array, "batch dim"]]] = deque()
    for item, array in started:
        array.copy_to_host_async()
        flight.append((item, array))
        if len(flight) > IN_FLIGHT:
            yield _fetch(*flight.popleft())
    while flight:
        yield _fetch(*flight.popleft())


def spans(count: int, most: int) -> Iterator[range]:
    """Cuts `count` rows into consecutive parts of up to `most`.

    The first ones are short, so that devices have something to do soon.
    """
    start, size = 0, max(most // 8, 1)
    while start < count:
        yield range(start, min(start + size, count))
        start, size = start + size, min(2 * size, most)


def _fetch(
    item: Item, array: Float[Array, "batch dim"]
) -> tuple[Item, Float[np.ndarray, "rows dim"]]:
    return item, np.asarray(array)
