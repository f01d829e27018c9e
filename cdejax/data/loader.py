"""Batches in step order, prefetched by reader threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

T = TypeVar("T")


def batches(
    make: Callable[[int], T], start: int, stop: int, *, threads: int, ahead: int = 4
) -> Iterator[tuple[int, T]]:
    """Yields (step, `make(step)`) for the steps from `start` up to, excluding, `stop`.

    `make` is a pure function of the step, so batches depend on nothing else: resuming
    needs only the step, and no iterator state is ever saved.

    Args:
      make: makes the batch of a step; called from several threads.
      start: first step.
      stop: end of the steps (exclusive).
      threads: number of reader threads.
      ahead: number of batches made in advance.
    """
    import grain

    if start >= stop:
        return
    dataset = grain.MapDataset.range(start, stop).map(lambda step: (step, make(step)))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    yield from dataset.to_iter_dataset(options)


def with_wait_times(items: Iterable[T]) -> Iterator[tuple[float, T]]:
    """Yields each item with the seconds spent waiting for it."""
    iterator, done = iter(items), object()
    while True:
        start = time.perf_counter()
        item = next(iterator, done)
        if item is done:
            return
        yield time.perf_counter() - start, cast(T, item)
