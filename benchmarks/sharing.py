"""`step.py fsdp`: a model that does not fit one device, trained by several."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import jax
import numpy as np
from checks import refuse
from comparison import (
    WARM_UP,
    matrix_ceiling,
    measure,
    settings_of,
    texts_of,
    variations,
)
from encoders import build
from flax import nnx
from ours import Run
from reporting import file_of
from step_report import draw, facts, merge, rows_table

from cdejax.training.layerwise import chunk_traffic
from cdejax.training.memory import chunk_tokens
from cdejax.training.sharding import make_mesh


def share(options: argparse.Namespace) -> None:
    """Trains the large BERT, its parameters shared by all devices asked for."""
    devices, total = jax.devices()[: options.devices], WARM_UP + options.steps
    if len(devices) < options.devices:
        refuse(f"--devices {options.devices}: there are {len(devices)} only")
    if options.batch % options.devices:
        refuse(
            f"--batch {options.batch}: {options.devices} devices cannot share it "
            "equally; give a multiple"
        )
    settings = settings_of(options, "large", options.batch)
    settings = dataclasses.replace(settings, fsdp=options.devices)
    world, drawn = texts_of(options, "large", options.batch, total)
    alone = _alone(options)
    print(f"on one device: {alone}", flush=True)
    top = matrix_ceiling(options.toy)
    found, run = measure(settings, world, total, devices)
    found |= _costs(run, range(WARM_UP, total))
    found |= {"lengths": drawn, "one_device": alone}
    rate = found["useful_tflops"]["median"] * 1e12 / options.devices
    found["ceiling_share"] = rate / max(top.values())
    _report(options, found)


def _alone(options: argparse.Namespace) -> str:
    """What training says of the same model on one device."""
    model = nnx.eval_shape(lambda: build("large", context=0, toy=options.toy))
    try:
        tokens = chunk_tokens(model, make_mesh(jax.devices()[:1]))
    except ValueError as error:
        return str(error)
    return f"it fits (chunks of {tokens:,} tokens)"


def _costs(run: Run, steps: range) -> dict[str, Any]:
    """What the devices tell each other for a chunk, and chunks of the busiest step."""
    traffic = chunk_traffic(run.state.params, run.mesh)
    used = [run.maker.step(step).texts for step in steps]
    chunks = [sum(int(np.asarray(x.count).max()) for x in texts) for texts in used]
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(run.state.params)),
        "traffic_of_a_chunk": traffic._asdict(),
        "chunks_a_step": max(chunks),
    }


def _report(options: argparse.Namespace, found: dict[str, Any]) -> None:
    about = facts()
    path = file_of(options.out, options.file, about["date"])
    name = f"{found['parameters'] / 1e9:.2f} billion parameters, fsdp {options.devices}"
    if limit := (jax.devices()[0].memory_stats() or {}).get("bytes_limit"):
        name += f", {limit / 2**30:.0f} GiB a device"
    name = ", ".join([name, *variations(options)])
    held = merge(path, {name: found}, sys.argv)
    rates = {key: entry["pairs_per_second"]["median"] for key, entry in held.items()}
    draw(path.with_suffix(".png"), rates, "pairs a second", about["devices"])
    gib = {
        "parameters, gradients, two moments": 16 * found["parameters"] / 2**30,
        "received for a chunk, at most": sum(found["traffic_of_a_chunk"].values())
        / 2**30,
    }
    if found["peak_bytes"]:
        gib["peak of a device"] = found["peak_bytes"] / 2**30
    rows = [[key, f"{value:,.3f} GiB"] for key, value in gib.items()]
    rows += [
        ["pairs/s", f"{found['pairs_per_second']['median']:,.1f}"],
        ["of the ceiling", f"{found['ceiling_share']:.1%}"],
        ["chunks a step, on a device", f"{found['chunks_a_step']}"],
        [
            "loss, first and last step",
            f"{found['losses'][0]:.3f}, {found['losses'][-1]:.3f}",
        ],
    ]
    rows_table(f"{name}, {about['devices']}", ("", ""), rows)
