"""`step.py scaling`: the same batch on each of more and more devices of one host."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import jax
from checks import refuse
from comparison import WARM_UP, measure, settings_of, texts_of, variations
from ours import Settings
from reporting import file_of
from step_report import draw, facts, merge, rows_table

PER_DEVICE = {"biencoder": 4096, "contextual": 512}
EFFICIENCIES = {
    "efficiency": "pairs_per_second_and_device",
    "efficiency_in_useful_tflops": "useful_tflops_a_device",
}


def scale(options: argparse.Namespace) -> None:
    devices = jax.devices()
    if max(options.devices) > len(devices):
        refuse(f"--devices {max(options.devices)}: there are {len(devices)} only")
    sizes = {kind: options.batch or PER_DEVICE[kind] for kind in options.kinds}
    plans = {kind: settings_of(options, kind, each) for kind, each in sizes.items()}
    results: dict[str, Any] = {}
    for kind, each in sizes.items():
        for count in options.devices:
            name = ", ".join(
                [f"{kind}, {count} x {each:,} pairs", *variations(options)]
            )
            print(name, flush=True)
            results[name] = _measure(
                options, plans[kind], each * count, devices[:count]
            )
    for kind in options.kinds:
        _compare_with_first([v for k, v in results.items() if k.startswith(kind)])
    _report(options, results)


def _measure(
    options: argparse.Namespace, settings: Settings, batch: int, devices: list[Any]
) -> dict[str, Any]:
    # The context is as large as on one device: the second stage's work on a pair stays
    # the same, the first stage's is shared by more pairs. Useful FLOPs tell how much.
    total = WARM_UP + options.steps
    world, drawn = texts_of(options, settings.kind, batch, total)
    found, _ = measure(settings, world, total, devices)
    jax.clear_caches()  # what was compiled for the last devices
    return found | {"lengths": drawn, "batch": batch}


def _compare_with_first(found: list[dict[str, Any]]) -> None:
    """Pairs a second and useful TFLOP/s a device, over those of the fewest devices."""
    for entry in found:
        rate = entry["pairs_per_second"]["median"] / entry["devices"]
        entry["pairs_per_second_and_device"] = rate
        entry["useful_tflops_a_device"] = (
            entry["useful_tflops"]["median"] / entry["devices"]
        )
    base = min(found, key=lambda entry: entry["devices"])
    for name, of in EFFICIENCIES.items():
        for entry in found:
            entry[name] = entry[of] / base[of]


def _report(options: argparse.Namespace, results: dict[str, Any]) -> None:
    about = facts()
    path = file_of(options.out, options.file, about["date"])
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
            f"{found['efficiency_in_useful_tflops']:.1%}",
            f"{found['device_idle_share']:.1%}",
            f"{found['start_up_seconds']['all']:.0f}",
        ]
        for name, found in results.items()
    ]
    rates = ("pairs/s", "a device", "efficiency", "in useful TFLOP/s")
    heads = ("", *rates, "device idle", "start-up s")
    rows_table(title, heads, rows)
