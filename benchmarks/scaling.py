"""`step.py scaling`: the same batch on each of more and more devices of one host."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import jax
from comparison import WARM_UP, measure, settings_of, texts_of
from step_report import draw, facts, file_of, merge, rows_table

PER_DEVICE = {"biencoder": 4096, "contextual": 512}


def scale(options: argparse.Namespace) -> None:
    devices = jax.devices()
    if max(options.devices) > len(devices):
        raise SystemExit(
            f"--devices {max(options.devices)}: there are {len(devices)} only"
        )
    if unknown := set(options.kinds) - PER_DEVICE.keys():
        raise SystemExit(f"--kinds {unknown}: {', '.join(PER_DEVICE)} are known")
    results: dict[str, Any] = {}
    for kind in options.kinds:
        each = options.batch or PER_DEVICE[kind]
        for count in options.devices:
            name = f"{kind}, {count} x {each:,} pairs"
            print(name, flush=True)
            results[name] = _measure(options, kind, (each, count), devices[:count])
    for kind in options.kinds:
        _compare_with_first([v for k, v in results.items() if k.startswith(kind)])
    _report(options, results)


def _measure(
    options: argparse.Namespace, kind: Any, size: tuple[int, int], devices: list[Any]
) -> dict[str, Any]:
    total, (each, count) = WARM_UP + options.steps, size
    batch = each * count
    # The context stays as large as it is on one device: the work of a pair, too.
    settings = dataclasses.replace(
        settings_of(options, kind, batch),
        context=settings_of(options, kind, each).context,
    )
    world, drawn = texts_of(options, kind, batch, total)
    found, _ = measure(settings, world, total, devices)
    jax.clear_caches()  # what was compiled for the last devices
    return found | {"lengths": drawn, "batch": batch}


def _compare_with_first(found: list[dict[str, Any]]) -> None:
    """Pairs a second on each device, over those of the fewest devices."""
    for entry in found:
        rate = entry["pairs_per_second"]["median"] / entry["devices"]
        entry["pairs_per_second_and_device"] = rate
    base = found[0]["pairs_per_second_and_device"]
    for entry in found:
        entry["efficiency"] = entry["pairs_per_second_and_device"] / base


def _report(options: argparse.Namespace, results: dict[str, Any]) -> None:
    about = facts()
    path = file_of(options.out, "scaling", about["date"])
    held = merge(path, results, sys.argv)
    bars = {name: found["efficiency"] for name, found in held.items()}
    title = f"weak scaling, global negatives, {about['devices']}"
    draw(path.with_suffix(".png"), bars, "of the fewest devices' rate", title)
    rows = [
        [
            name,
            f"{found['pairs_per_second']['median']:,.1f}",
            f"{found['pairs_per_second_and_device']:,.1f}",
            f"{found['efficiency']:.1%}",
            f"{found['device_idle_share']:.1%}",
            f"{found['start_up_seconds']['all']:.0f}",
        ]
        for name, found in results.items()
    ]
    heads = ("", "pairs/s", "a device", "efficiency", "device idle", "start-up s")
    rows_table(title, heads, rows)
