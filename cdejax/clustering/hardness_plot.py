"""The hardness report as one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

DOMAINS = 15
"""Number of domains shown by name: those with the most steps."""
_COLOURS = {
    "planned": "#c2410c",
    "random_in_domain": "#64748b",
    "random": "#cbd5e1",
}
_NAMES = {
    "planned": "planned batches",
    "random_in_domain": "random in domain",
    "random": "random",
}


def draw(numbers: dict[str, Any], path: str | Path) -> None:
    """Plots cluster sizes, mean cosines, and top-1 rate and masked share by domain.

    Args:
      numbers: the figures that `hardness_report` returns.
      path: the PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    domains = sorted(numbers["domains"].items(), key=lambda item: -item[1]["steps"])
    shown = [("all", numbers), *domains[:DOMAINS]]
    figure = Figure(figsize=(12, 5.5 + 0.32 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [2.6, 1.2 + 0.32 * len(shown)]
    (sizes, cosines), (top1, masked) = figure.subplots(2, 2, height_ratios=heights)
    _draw_sizes(sizes, numbers.get("clusters"))
    _draw_cosines(cosines, numbers.get("clusters"))
    _draw_shares(top1, shown, "top1", "Own document scores highest (top-1 rate)")
    _draw_shares(masked, shown, "masked", "Negatives that the mask would remove")
    left_out = len(domains) - DOMAINS
    title = (
        f"Hardness of batches of {numbers['batch_size']} as the surrogate sees it "
        f"({numbers['steps']} steps, margin {numbers['false_negative_margin']:g})"
    )
    if left_out > 0:
        title += f"\n{left_out} domains with fewer steps are counted in `all` only"
    figure.suptitle(title)
    handles, labels = top1.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(str(path), dpi=120)


def _draw_sizes(axes: Any, clusters: dict[str, Any] | None) -> None:
    axes.set_title("Cluster sizes")
    if clusters is None:
        axes.text(0.5, 0.5, "this plan has no clusters", ha="center", va="center")
        axes.set_axis_off()
        return
    sizes = np.array(clusters["sizes"])
    bins = np.geomspace(0.8, sizes.max() * 1.2, 30)
    axes.hist(sizes, bins=bins, color=_COLOURS["planned"])
    axes.axvline(sizes.mean(), color="black", linestyle="--", linewidth=1)
    axes.text(sizes.mean(), axes.get_ylim()[1], f" mean {sizes.mean():.0f}", va="top")
    axes.set_xscale("log")
    axes.set_xlabel("training pairs in a cluster (log scale)")
    axes.set_ylabel(f"clusters (of {clusters['clusters']:,})")


def _draw_cosines(axes: Any, clusters: dict[str, Any] | None) -> None:
    axes.set_title("Mean cosine between two different pairs")
    if clusters is None:
        axes.set_axis_off()
        return
    means = clusters["mean_cosine"]
    labels = {
        "cluster": ("same cluster", _COLOURS["planned"]),
        "domain": ("same domain", _COLOURS["random_in_domain"]),
        "all": ("any two", _COLOURS["random"]),
    }
    for i, (key, (label, colour)) in enumerate(labels.items()):
        values = [means["queries"][key], means["documents"][key]]
        bars = axes.bar(np.arange(2) + 0.27 * (i - 1), values, 0.25, label=label)
        for bar in bars:
            bar.set_color(colour)
        axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set_xticks([0, 1], ["queries", "documents"])
    axes.set_ylabel("cosine")
    axes.margins(y=0.3)
    axes.legend(loc="upper center", ncols=3)


def _draw_shares(axes: Any, shown: list, key: str, title: str) -> None:
    axes.set_title(title)
    places = np.arange(len(shown))
    for i, kind in enumerate(_NAMES):
        rows = [
            (p, d[kind][key])
            for p, (_, d) in zip(places, shown, strict=True)
            if kind in d
        ]
        at, values = zip(*rows, strict=True)
        bars = axes.barh(
            np.array(at) + 0.27 * (i - 1),
            100 * np.array(values),
            0.25,
            label=_NAMES[kind],
            color=_COLOURS[kind],
        )
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.set_yticks(places, [f"{name} ({d['steps']} steps)" for name, d in shown])
    axes.invert_yaxis()
    axes.set_xlabel("per cent")
    axes.margins(x=0.12)
