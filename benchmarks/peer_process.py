"""Runs a peer before JAX takes the device's memory, and brings back its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from encoders import Kind
from figures import spread
from texts import World, save_steps

ROOT = Path(__file__).parent.parent
GRACE = 60.0
"""Seconds after its time is up at which a peer is stopped."""


def run_peer(
    kind: Kind, world: World, steps: range, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Times the peer over some steps of the plan, the first of them to warm up.

    Args:
      kind: which peer.
      world: the texts.
      steps: which steps of the plan.
      settings: `context`, `temperature`, `toy`, `chunks` (None: the peer's own) and
        `seconds`, after which no further setting is begun.

    Returns:
      What each setting gave, as far as it got.
    """
    with tempfile.TemporaryDirectory() as place:
        texts, results = Path(place) / "texts.npz", Path(place) / "results.jsonl"
        save_steps(texts, world, steps)
        results.touch()
        told = {"kind": kind, "texts": str(texts), "results": str(results)}
        (Path(place) / "settings.json").write_text(json.dumps(told | settings))
        command = [sys.executable, str(Path(__file__).parent / "peer.py")]
        failed = None
        try:
            subprocess.run(
                [*command, str(Path(place) / "settings.json")],
                env=_environment(),
                timeout=settings["seconds"] + GRACE,
                check=True,
            )
        except subprocess.SubprocessError as error:
            failed = str(error)
        found = [json.loads(line) for line in results.read_text().splitlines()]
    if failed is not None:
        print(f"the peer was stopped: {failed}", flush=True)
    return found


def _environment() -> dict[str, str]:
    """The peer's JAX, which only tells sizes, is to leave the device alone."""

    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    own = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def peer_figures(
    found: dict[str, Any], batch: int, tokens: list[float], flops: list[float]
) -> dict[str, Any]:
    """Rates from the seconds of one setting, of the same texts' tokens and FLOPs."""
    if "error" in found:
        return found
    seconds = np.array(found["seconds"])
    return found | {
        "pairs_per_second": spread(batch / seconds),
        "real_tokens_per_second": spread(np.array(tokens) / seconds),
        "useful_tflops": spread(np.array(flops) / seconds / 1e12),
    }


def setting_name(found: dict[str, Any]) -> str:
    """A bar's or a row's title."""
    return f"{found['name']}, {found['chunk']} rows, {found['mode']}"
