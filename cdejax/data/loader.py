"""Batches in order of their steps, made ahead by reader threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

T = TypeVar("T")


def batches(
    make: Callable[[int], T], start: int, stop: int, *, threads: int, ahead: int = 4
) -> Iterator[tuple[int, T]]:
    """Yields (step, `make(step)`) for the steps from `start` to before `stop`.

    `make` is a pure function of the step, so what is yielded depends on nothing else:
    resuming needs the step alone, and no iterator state is ever saved.

    Args:
      make: makes the batch of a step; called from several threads.
      start: first step.
      stop: step to stop before.
      threads: reader threads.
      ahead: batches made in advance.
    """
    import grain

    if start >= stop:
        return
    dataset = grain.MapDataset.range(start, stop).map(lambda step: (step, make(step)))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    yield from dataset.to_iter_dataset(options)


def with_wait_times(items: Iterable[T]) -> Iterator[tuple[float, T]]:
    """Each item with the seconds that it was waited for."""
    iterator, done = iter(items), object()
    while True:
        start = time.perf_counter()
        item = next(iterator, done)
        if item is done:
            return
        yield time.perf_counter() - start, cast(T, item)
