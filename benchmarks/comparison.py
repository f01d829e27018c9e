"""`step.py biencoder` and `contextual`: our step, and PyTorch's on the same texts."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from checks import refuse, told_of
from encoders import Kind, vocabulary
from figures import (
    compilation_figures,
    peak_bytes,
    shapes,
    step_figures,
    step_lengths,
)
from flops import ceiling, useful_flops
from ours import DROPOUT, WIDTHS, Run, Settings, prepare
from peer_process import peer_figures, run_peer, setting_name
from reporting import file_of
from step_report import draw, facts, merge, step_table, trace_tables
from texts import Law, World, make_world, read_lengths, repeated
from tracing import breakdown

from cdejax.runtime.compilation import Compilations

WARM_UP = 3
"""Steps before those that are measured; the first compiles."""
OURS = {
    "chunk_tokens": None,
    "keep": None,
    "max_widths": WIDTHS,
    "sequence_dropout": DROPOUT,
}
"""What our step has a say in, and what it is unless told otherwise."""
PEER_STEPS = 6
"""Steps of a peer's setting; the first warms up."""
MEANS = {"biencoder": (9, 79), "large": (9, 79), "contextual": (11, 140)}
"""Tokens of queries and documents; (9, 79) are like MS MARCO's."""
LONGEST = {"biencoder": 256, "large": 256, "contextual": 512}
CEILING = (4096, 8192, 16384)
TEMPERATURE = 0.05


def compare(options: argparse.Namespace) -> None:
    kind: Kind = options.mode
    settings = settings_of(options, kind, options.batch)
    total = WARM_UP + options.steps
    world, drawn = texts_of(options, kind, options.batch, total + 2)
    print(f"{drawn['law']}; drawn means {drawn['means']}", flush=True)
    peers = _peers(options, settings, world) if options.peer else []
    # The peer must be gone before JAX takes the device's memory.
    compilations = Compilations()
    top = matrix_ceiling(options.toy)
    ours, run = measure(settings, world, total)
    ours["lengths"] = drawn
    ours["compilations"] |= compilation_figures(compilations)
    if options.profile:
        ours["trace"] = trace(run, range(total, total + 2), options.profile)
    texts = _texts(options)
    rows = f"cdejax, {options.rows} rows"
    results = {", ".join([rows, *_chosen(options), *texts]): ours}
    results |= {
        ", ".join([name, *texts]): found
        for name, found in _peer_results(run, world, peers).items()
    }
    _report(options, results, top)


def settings_of(options: argparse.Namespace, kind: Kind, batch: int) -> Settings:
    """The command line's settings for one kind of encoder.

    Ends the program if the context is more than a batch has documents, or not all of
    them where a peer is asked for.
    """
    context = 0
    if kind == "contextual":
        context = min(512, batch) if options.context is None else options.context
        if context > batch:
            refuse(
                f"--context {context}: it is drawn from a batch's documents; give at "
                f"most the batch, {batch}"
            )
        if getattr(options, "peer", False) and context != batch:
            refuse(
                f"--context {context}: the peer's context is the batch's own "
                f"documents; set it to the batch, {batch}, or leave out --peer"
            )
    return Settings(
        kind=kind,
        context=context,
        packed=options.rows == "packed",
        chunk_tokens=options.chunk_tokens,
        keep=options.keep,
        max_widths=options.max_widths,
        temperature=TEMPERATURE,
        sequence_dropout=options.sequence_dropout if context else 0.0,
        seed=options.seed,
        toy=options.toy,
    )


def texts_of(
    options: argparse.Namespace, kind: Kind, batch: int, steps: int
) -> tuple[World, dict[str, Any]]:
    """Texts for some steps, and how their lengths came about."""
    longest = options.max_length or LONGEST[kind]
    rows, rng = batch * steps, np.random.default_rng([options.seed, 0])
    if options.lengths is not None:
        with told_of("--lengths"):
            found = read_lengths(options.lengths, longest)
        lengths = repeated(found, rows, options.seed)
        law = f"lengths of {options.lengths}, at most {longest}"
    else:
        means = (4, 10) if options.toy else MEANS[kind]
        found = Law(*means, longest)
        lengths, law = found.draw(rows, rng), str(found)
    world = make_world(lengths, batch, vocabulary(kind, options.toy), options.seed)
    means = lengths.mean(0).round(2).tolist()
    return world, {"law": law, "means": means, "longest": lengths.max(0).tolist()}


def matrix_ceiling(toy: bool) -> dict[int, float]:
    """FLOP/s of matrix products on the first device."""
    found = ceiling((256,) if toy else CEILING, jax.devices()[0])
    print("matrix products: " + ", ".join(
        f"{size}³ {rate / 1e12:.4g} TFLOP/s" for size, rate in found.items()
    ), flush=True)  # fmt: skip
    return found


def measure(
    settings: Settings, world: World, total: int, devices: list[Any] | None = None
) -> tuple[dict[str, Any], Run]:
    """Warm-up and measured steps; figures of the latter, and what start-up took."""
    run = prepare(settings, world, devices or jax.devices()[:1])
    start = time.perf_counter()
    run.train(range(1))
    seconds = run.seconds | {"first_step": time.perf_counter() - start}
    print(f"  ready after {seconds}", flush=True)
    moments, losses = run.train(range(1, total))
    found = step_figures(run, moments[WARM_UP - 2 :], range(WARM_UP - 1, total))
    found |= {
        "start_up_seconds": seconds | {"all": sum(seconds.values())},
        "compilations": {"of_the_step": run.step._cache_size()},
        "peak_bytes": peak_bytes(list(run.mesh.devices.flat)),
        "losses": losses,
        **shapes(run),
    }
    if not np.isfinite(losses).all():
        raise SystemExit(f"the loss is not finite: {losses}")
    print(f"  {found}", flush=True)
    return found, run


def trace(run: Run, steps: range, folder: str) -> dict[str, Any]:
    """Two more steps under the profiler, and where their time went."""
    with jax.profiler.trace(folder):
        run.train(steps)
    found = breakdown(folder)
    trace_tables(found)
    return found


def _peers(
    options: argparse.Namespace, settings: Settings, world: World
) -> list[dict[str, Any]]:
    told = {
        "context": settings.context,
        "temperature": settings.temperature,
        "toy": settings.toy,
        "chunks": [8] if settings.toy else None,
        "seconds": options.peer_seconds,
    }
    return run_peer(settings.kind, world, range(PEER_STEPS), told)


def _peer_results(
    run: Run, world: World, peers: list[dict[str, Any]]
) -> dict[str, Any]:
    """Figures of each setting of the peer, over the steps that it was timed on."""
    steps = range(1, PEER_STEPS)
    flops = [useful_flops(run.model, *step_lengths(run, step)) for step in steps]
    tokens = [float(run.maker.real_tokens(step)) for step in steps]
    batch = world.plan.batch_size
    return {
        setting_name(found): peer_figures(found, batch, tokens, flops)
        for found in peers
    }


def _report(
    options: argparse.Namespace, results: dict[str, Any], top: dict[int, float]
) -> None:
    about = facts()
    path = file_of(options.out, options.file, about["date"])
    told = {
        "settings": {k: str(v) for k, v in vars(options).items() if k != "usual"},
        "ceilings": {str(size): rate for size, rate in top.items()},
    }
    for found in results.values():
        if "error" not in found:
            rate = found["useful_tflops"]["median"] * 1e12
            found["ceiling_share"] = rate / max(top.values())
    held = merge(path, {k: {**told, **v} for k, v in results.items()}, sys.argv)
    texts = _texts(options)  # the same for all, so the title has them
    rates = {
        name.removesuffix(", ".join(["", *texts])): found["pairs_per_second"]["median"]
        for name, found in held.items()
        if "error" not in found and _same_texts(found["settings"], told["settings"])
    }
    batch = f"{options.mode}: {options.batch:,} pairs a step"
    title = ", ".join([batch, *texts, about["devices"]])
    draw(path.with_suffix(".png"), rates, "pairs a second", title)
    mine = next(iter(results.values()))
    print(f"start-up {mine['start_up_seconds']}, compilations {mine['compilations']}")
    print(f"host {mine['host_shares']}, device idle {mine['device_idle_share']:.1%}")
    print(f"padding efficiency at best {mine['best_padding_efficiency']:.3f}")
    _print_ratio(results)
    step_table(results, title)


def variations(options: argparse.Namespace) -> list[str]:
    """What a result's name says of settings that are not as usual.

    Results of a file must not take each other's place.
    """
    rows = [] if options.rows == "packed" else [f"{options.rows} rows"]
    return [*rows, *_chosen(options), *_texts(options)]


def _chosen(options: argparse.Namespace) -> list[str]:
    """What of our step was not left to training."""
    return _unusual(options, OURS)


def _texts(options: argparse.Namespace) -> list[str]:
    """What of the texts is not as usual."""
    found = _unusual(options, options.usual | {"context": None})
    if options.lengths is not None:
        found.append(f"lengths of {Path(options.lengths).name}")
    return found


def _unusual(options: argparse.Namespace, usual: dict[str, Any]) -> list[str]:
    names = [n for n, value in usual.items() if getattr(options, n) != value]
    return [f"{name.replace('_', ' ')} {getattr(options, name)}" for name in names]


def _same_texts(one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether two results of a file can stand in one picture."""
    names = ("batch", "max_length", "lengths", "context", "seed", "toy")
    return all(one[name] == other[name] for name in names)


def _print_ratio(results: dict[str, Any]) -> None:
    (mine, *others) = [
        (found["pairs_per_second"]["median"], name)
        for name, found in results.items()
        if "error" not in found
    ]
    if others:
        rate, name = max(others)
        print(f"cdejax / {name}: {mine[0] / rate:.2f} times the pairs a second")
