"""Compares every encoder with transformers' torch class and prints a table (Markdown).

    python scripts/parity.py

Weights are random, drawn so that no fault hides (see tests/models/oracles.py), in
float32 on the CPU. Needs the packages of the `dev` extra; a difference above the
tolerance ends it with exit code 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers asks the hub for kernels
sys.path.insert(0, str(Path(__file__).parents[1]))

from cdejax.models import config_dict, from_pretrained, to_state_dict
from tests.models.oracles import (
    ORACLES,
    TOLERANCE,
    biencoder,
    hidden,
    padded,
    run,
    state_dict,
)
from tests.models.pretrained.test_presets import LENGTHS, Published

Row = tuple[str, str, str, str]
_WIDTHS = (1, 24, 65)


def states_row(name: str, encoder, oracle) -> Row:
    """Hidden states of real tokens, both sides of padding."""
    worst = 0.0
    for width in _WIDTHS:
        for side in ("right", "left"):
            lengths = [width, max(1, width // 2), max(1, width - 3)]
            pad = getattr(encoder.config, "pad_token_id", 0) or 0
            ids, mask = padded(lengths, width, side=side, seed=width, pad=pad)
            gap = np.abs(
                np.asarray(run(encoder, ids, mask)) - hidden(oracle, ids, mask)
            )
            worst = max(worst, float(gap[mask].max()))
    compared = f"hidden states of real tokens, {_WIDTHS} tokens, padding left and right"
    return name, "theirs → ours", _against(worst), compared


def weights_row(name: str, encoder, oracle) -> Row:
    """Our weights, read from what transformers saved, and its own: name by name."""
    theirs, ours = state_dict(oracle), to_state_dict(encoder)
    wrong = theirs.keys() ^ ours.keys()
    wrong |= {k for k in theirs.keys() & ours.keys() if (theirs[k] != ours[k]).any()}
    said = f"{sorted(wrong)} DIFFER" if wrong else "bit-equal"
    return name, "theirs → ours → theirs", said, f"{len(theirs)} tensors"


def back_row(name: str, encoder, oracle) -> Row:
    """Our config.json and weights, loaded strictly by transformers' class."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps(config_dict(encoder)))
        tensors = to_state_dict(encoder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        again, info = type(oracle).from_pretrained(folder, output_loading_info=True)
    ids, mask = padded([24, 12, 21], 24)
    gap = np.abs(np.asarray(run(encoder, ids, mask)) - hidden(again.eval(), ids, mask))
    said = _against(float(gap[mask].max()))
    if unfit := list(info["unexpected_keys"]):
        said += f", {unfit} DIFFER"
    return name, "ours → theirs", said, "hidden states of a model made from our files"


def preset_rows() -> Iterator[Row]:
    """Both stages of the published contextual layouts."""
    for preset in ("v1-train", "v1-hub", "v2"):
        with tempfile.TemporaryDirectory() as temporary:
            oracle = Published(preset)
            oracle.save(Path(temporary))
            model = from_pretrained(temporary, preset=preset)
        ids, mask = padded(LENGTHS, 14)
        context = oracle.first(*padded([6] * 12, 6, seed=4))
        stages = {
            "first": (
                run(model, ids, mask, method="first_stage"),
                oracle.first(ids, mask),
            ),
            "second": (
                run(model, ids, mask, context, method="second_stage"),
                oracle.second(ids, mask, context),
            ),
        }
        for stage, (ours, theirs) in stages.items():
            worst = float(np.abs(np.asarray(ours) - theirs).max())
            name = f"CDE {preset}, {stage} stage"
            yield name, "theirs → ours", _against(worst), "embeddings"


def rows() -> Iterator[Row]:
    """All rows of the table, one architecture after the other."""
    for name, make in ORACLES.items():
        oracle = make()
        with tempfile.TemporaryDirectory() as temporary:
            oracle.save_pretrained(temporary)
            encoder = biencoder(temporary).encoder
            yield states_row(name, encoder, oracle)
            yield weights_row(name, encoder, oracle)
        yield back_row(name, encoder, oracle)
    yield from preset_rows()


def _against(difference: float) -> str:
    verdict = "≤" if difference <= TOLERANCE else "ABOVE"
    return f"{difference:.0e} {verdict} {TOLERANCE:.0e}"


def main() -> None:
    """Prints the table; exit code 1 if anything in it is wrong."""
    found = []
    print("| architecture | direction | difference | compared |")
    print("| --- | --- | --- | --- |")
    for row in rows():
        found.append(row)
        print(f"| {' | '.join(row)} |", flush=True)
    wrong = [row for row in found if any(w in row[2] for w in ("ABOVE", "DIFFER"))]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
