"""Batches in order of their steps, made ahead by reader threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

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
