"""Tables, files and pictures of a training step's figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reporting import environment, save
from rich import box
from rich.console import Console
from rich.table import Table

SHOWN = 12
"""Longest kernels that are printed; the JSON has more."""
PACKAGES = (
    *("flax", "optax", "torch", "sentence-transformers", "transformers"),
    *("jax-cuda13-plugin", "nvidia-cudnn-cu13"),
)


def facts() -> dict[str, Any]:
    """Card, driver, versions and date."""
    return environment(*PACKAGES)


def merge(path: Path, results: dict[str, Any], command: Sequence[str]) -> dict:
    """Writes results beside those that a file of the same day holds already."""
    held = json.loads(path.read_text())["results"] if path.is_file() else {}
    line = " ".join(command)
    new = {name: {"command": line, **found} for name, found in results.items()}
    save(path, {**facts(), "results": held | new}, command)
    return held | new


def step_table(results: dict[str, Any], title: str) -> None:
    """One row for each system and setting; medians."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    heads = ("pairs/s", "real tokens/s", "useful TFLOP/s", "of ceiling")
    for head in ("", *heads, "padding efficiency", "peak GiB"):
        table.add_column(head, justify="right" if head else "left")
    for name, found in results.items():
        if "error" in found:
            table.add_row(name, found["error"])
            continue
        peak = found["peak_bytes"]
        table.add_row(
            name,
            f"{found['pairs_per_second']['median']:,.1f}",
            f"{found['real_tokens_per_second']['median']:,.0f}",
            f"{found['useful_tflops']['median']:,.4g}",
            f"{found['ceiling_share']:.1%}",
            f"{found['padding_efficiency']:.3f}",
            "" if peak is None else f"{peak / 2**30:.1f}",
        )
    show(table)


def rows_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Any table whose first column is text."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    show(table)


def show(table: Table) -> None:
    Console(width=132).print(table)


def trace_tables(found: dict[str, Any]) -> None:
    """Where a trace says that the time went."""
    if "note" in found:
        print(found["note"])
        return
    title = f"device time of two steps, {found['milliseconds']:,.1f} ms"
    shares = [[kind, f"{share:.1%}"] for kind, share in found["shares"].items()]
    rows_table(title, ("class", "share"), shares)
    kernels = [
        [name[:90], entry["class"], f"{entry['share']:.1%}"]
        for name, entry in list(found["kernels"].items())[:SHOWN]
    ]
    rows_table("longest kernels", ("name", "class", "share"), kernels)


def draw(path: Path, bars: dict[str, float], label: str, title: str) -> None:
    """A bar for each name."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.4 * len(bars)), layout="tight")
    drawn = axis.barh(list(bars), list(bars.values()))
    axis.bar_label(drawn, fmt="{:,.4g}", padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xlabel(label)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=150)
    print(f"{path} written", flush=True)
