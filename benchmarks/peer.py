"""Times a peer's training step in a process of its own: `peer.py SETTINGS.json`.

`step.py --peer` calls it. One line of JSON goes to the results file for each setting
(rows of a chunk, and how the encoder runs) as soon as it is known: what was measured
before the time is up counts.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from encoders import build
from flax import nnx
from peers.texts import Step, read_steps
from torch import nn

from cdejax.models.pretrained.load import config_dict

MODES = ("eager", "layers compiled", "compiled")
"""How PyTorch runs an encoder: as it is, with `torch.compile` of its layer (one for all
layers, which takes seconds), or of the whole (which takes minutes)."""
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def peer_config(kind: Any, context: int, toy: bool) -> dict[str, Any]:
    """`config.json` of the model that cdejax trains, without dropout."""
    config = config_dict(nnx.eval_shape(lambda: build(kind, context=context, toy=toy)))
    inner = config.get("backbone_config", config)
    inner |= dict.fromkeys(DROPOUTS, 0.0)
    return config


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    begun, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    module = importlib.import_module(f"peers.{settings['kind']}")
    torch.manual_seed(0)
    config = peer_config(settings["kind"], settings["context"], settings["toy"])
    if settings["toy"]:
        torch.set_num_threads(1)
    peer = module.Peer(config, settings["temperature"], device)
    steps = read_steps(settings["texts"])
    chunks = settings["chunks"] or module.CHUNKS
    speed: dict[int, float] = {}
    for mode in MODES[:1] if settings["toy"] else MODES:
        if mode != "eager":
            compile_for(mode, peer.encoders)
            # Takes long: the fastest first, should there be time for one only.
            chunks = sorted(chunks, key=lambda chunk: speed[chunk])
        for chunk in chunks:
            if time.monotonic() - begun > settings["seconds"]:
                return
            found = {"name": module.NAME, "chunk": chunk, "mode": mode}
            found |= attempt(peer, steps, chunk, device)
            speed[chunk] = statistics.median(found.get("seconds", [math.inf]))
            print(f"  {found}", flush=True)
            with open(settings["results"], "a") as stream:
                stream.write(json.dumps(found) + "\n")


def compile_for(mode: str, encoders: Sequence[nn.Module]) -> None:
    """From the next step on, for any number and length of rows."""
    torch._dynamo.reset()
    layers = [layer for encoder in encoders for layer in layers_of(encoder)]
    for module in (*encoders, *layers):
        module._compiled_call_impl = None
    for module in layers if mode == "layers compiled" else encoders:
        module.compile(dynamic=True)


def layers_of(encoder: nn.Module) -> list[nn.Module]:
    """The blocks that a transformer repeats."""
    stacks = (x for x in encoder.modules() if isinstance(x, nn.ModuleList))
    return [layer for stack in stacks for layer in stack]


def attempt(peer: Any, steps: list[Step], chunk: int, device: str) -> dict[str, Any]:
    """One setting's times, or why there are none."""
    try:
        return measure(peer, steps, chunk, device)
    except RuntimeError as error:  # out of memory, or torch.compile's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:60]
    peer.model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    return {"error": reason}


def measure(peer: Any, steps: list[Step], chunk: int, device: str) -> dict[str, Any]:
    """Seconds of each step but the first, which warms up (and compiles)."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds, losses, filled = [], [], []
    for step in steps:
        ready = peer.ready(step, chunk)
        synchronize(device)
        start = time.perf_counter()
        loss, _ = peer.step(ready)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss))
        filled.append(ready.padding_efficiency)
    peak = None if device == "cpu" else torch.cuda.max_memory_allocated()
    return {
        "warm_up_seconds": seconds[0],
        "seconds": seconds[1:],
        "losses": losses,
        "padding_efficiency": sum(filled) / len(filled),
        "peak_bytes": peak,
    }


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
