"""Figures of measured steps: rates, shares, compilations, memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flops import useful_flops
from ours import Moments, Run

from cdejax.runtime.compilation import Compilations


def compilation_figures(compilations: Compilations) -> dict[str, Any]:
    """Of all functions, small ones included; those of the step are known apart."""
    seconds = compilations.seconds
    return {
        "functions": len(seconds),
        "seconds": sum(seconds),
        "longest_seconds": max(seconds, default=0.0),
        "read_from_cache": compilations.read_from_cache,
    }


def spread(values: npt.ArrayLike) -> dict[str, float]:
    """Median, least and most."""
    found = np.asarray(values, float)
    return {
        "median": float(np.median(found)),
        "min": float(found.min()),
        "max": float(found.max()),
    }


def step_figures(run: Run, moments: list[Moments], steps: range) -> dict[str, Any]:
    """What some steps show; the first of them only tells when the second began."""
    pairs = list(itertools.pairwise(moments))
    seconds = np.array([after.done - before.done for before, after in pairs])
    total = float(seconds.sum())
    idle = sum(max(after.put - before.done, 0.0) for before, after in pairs)
    maker, numbers = run.maker, steps[1:]
    lengths = [step_lengths(run, step) for step in numbers]
    flops = np.array([useful_flops(run.model, *texts) for texts in lengths])
    tokens = np.array([maker.real_tokens(step) for step in numbers])
    found, best = maker.padding_efficiency()
    return {
        "steps": len(numbers),
        "seconds": seconds.tolist(),
        "pairs_per_second": spread(maker.plan.batch_size / seconds),
        "real_tokens_per_second": spread(tokens / seconds),
        "useful_tflops": spread(flops / seconds / 1e12),
        "useful_flops_a_step": float(flops.mean()),
        "real_tokens_a_step": float(tokens.mean()),
        "padding_efficiency": found,
        "best_padding_efficiency": best,
        "host_shares": {
            "waits_for_loader": sum(m.got - m.asked for _, m in pairs) / total,
            "puts_batch": sum(m.put - m.got for _, m in pairs) / total,
            "starts_step": sum(m.sent - m.put for _, m in pairs) / total,
        },
        "device_idle_share": idle / total,
    }


def step_lengths(run: Run, step: int) -> list[np.ndarray]:
    """Lengths of a step's texts, and of its context documents if it has any."""
    maker = run.maker
    queries, documents, *context = maker.sharding.lengths(maker.sampler.rows(step))
    return [np.concatenate([queries, documents]), *context]


def shapes(run: Run) -> dict[str, Any]:
    """What the step was compiled for."""
    return {
        "chunk_tokens": run.maker.settings.chunk_tokens,
        "chunks_kept": list(run.kept.texts),
        "shapes": [
            [shape._asdict() for shape in layout.shapes] for layout in run.maker.layouts
        ],
        "devices": run.mesh.size,
    }


def peak_bytes(devices: Sequence[Any]) -> int | None:
    """The most that any of the devices has held since the process began."""
    stats = [device.memory_stats() or {} for device in devices]
    peaks = [found.get("peak_bytes_in_use") for found in stats]
    known = [peak for peak in peaks if peak is not None]
    return max(known, default=None)
