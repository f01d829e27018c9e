"""Evaluation results as JSON, table and chart, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cdejax.folders.paths import local_output
from cdejax.retrieval.bootstrap import Interval, paired
from cdejax.retrieval.evaluate import Result
from cdejax.retrieval.measures import DEFAULT, measure_of
from cdejax.storage.artifacts import read_json, write_json

if TYPE_CHECKING:
    from rich.table import Table

RESULTS, SUMMARY, CHART = "results.json", "summary.json", "chart.png"
FILES = {"results": RESULTS, "summary": SUMMARY, "chart": CHART}
"""File names of a report, by kind."""


def write_report(
    results: Sequence[Result],
    folder: str | Path,
    *,
    baseline: str | None = None,
    measure: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Path]:
    """Writes all scores, their summary and a bar chart; returns the paths by kind.

    `results.json` keeps the score of every query (see `read_results`), so that any two
    systems can be compared by paired differences later.

    Args:
      results: results of systems on collections.
      folder: the folder to write to.
      baseline: the system that the others are compared with (default: none).
      measure: the measure shown in the chart (default: the first of the results).
      resamples: number of bootstrap resamples.
      seed: seed of the bootstrap.
    """
    folder = local_output(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULTS, [_stored(result) for result in results])
    rows = summary(results, baseline=baseline, resamples=resamples, seed=seed)
    write_json(folder / SUMMARY, rows)
    write_chart(
        results, folder / CHART, measure=measure, resamples=resamples, seed=seed
    )
    return {kind: folder / name for kind, name in FILES.items()}


def read_results(folder: str | Path) -> list[Result]:
    """Reads the results of `write_report`; ValueError if there are none."""
    path = Path(folder) / RESULTS
    if not path.is_file():
        raise ValueError(f"{folder}: no {RESULTS} there; run `cdejax evaluate` first")
    try:
        return [_restored(row) for row in read_json(path)]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path}: not written by cdejax ({error!r})") from None


def difference(
    ours: Result,
    theirs: Result,
    measure: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Paired bootstrap interval of the mean difference between two systems.

    Raises:
      ValueError: the systems were not scored on the same queries.
    """
    if ours.query_ids != theirs.query_ids or ours.collection != theirs.collection:
        raise ValueError(
            f"{ours.system!r} on {ours.collection!r} and {theirs.system!r} on "
            f"{theirs.collection!r}: differences need the same queries"
        )
    measure = measure or ours.primary
    scores = ours.scores[measure], theirs.scores[measure]
    return paired(*scores, resamples=resamples, seed=seed)


def summary(
    results: Sequence[Result],
    *,
    baseline: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One row (a dict) per result: means, intervals, difference to the baseline.

    Raises:
      ValueError: there is no result of the baseline.
    """
    base = {r.collection: r for r in results if r.system == baseline}
    if baseline is not None and not base:
        systems = ", ".join(sorted({r.system for r in results}))
        raise ValueError(f"baseline {baseline!r}: the systems are {systems}")
    rows = []
    for result in results:
        row: dict[str, Any] = {
            "system": result.system,
            "collection": result.collection,
            "queries": len(result.query_ids),
            "measures": {
                name: result.interval(name, resamples, seed)._asdict()
                for name in result.scores
            },
            "settings": result.settings,
        }
        other = base.get(result.collection)
        if other is not None and other is not result:
            row["baseline"] = baseline
            row["difference"] = {
                name: difference(result, other, name, resamples, seed)._asdict()
                for name in result.scores
            }
        rows.append(row)
    return rows


def table(
    results: Sequence[Result],
    *,
    baseline: str | None = None,
    measure: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Table:
    """A rich table with a row per system and collection; intervals of one measure."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    measure = measure or (results[0].primary if results else DEFAULT[0])
    rows = summary(results, baseline=baseline, resamples=resamples, seed=seed)
    others = [name for name in results[0].scores if name != measure] if results else []
    change = "gain" if measure_of(measure).higher_is_better else "change"
    made = Table(
        caption="\n".join([_caption(baseline, resamples, change), *_notes(results)]),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    made.add_column("system", no_wrap=True)
    labels = [measure_of(name).label for name in (measure, *others)]
    for head in [*labels, *([change] if baseline else [])]:
        made.add_column(head, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        if row["collection"] != previous:
            previous = row["collection"]
            made.add_row(f"[bold]{escape(previous)} ({row['queries']:,} queries)")
        cells = ["  " + escape(row["system"]), _interval(row["measures"][measure])]
        cells += [_short(row["measures"][name]["mean"]) for name in others]
        if "difference" in row:
            cells.append(_interval(row["difference"][measure], "+"))
        made.add_row(*cells)
    return made


def _caption(baseline: str | None, resamples: int, change: str) -> str:
    text = f"[ ]: 95 % bootstrap intervals over queries, {resamples:,} resamples"
    return text + (f"; {change}: over {baseline}, paired" if baseline else "")


def _notes(results: Sequence[Result]) -> Iterator[str]:
    """Notes on what was left out of each collection and how checkpoints were chosen."""
    first = {result.collection: result for result in reversed(results)}
    for name, result in reversed(first.items()):
        if own := result.settings.get("own_documents"):
            yield f"{name}: {own:,} rankings leave out the query's own document"
        if unknown := result.settings.get("unknown_ids"):
            yield f"{name}: {unknown:,} judgments of unknown ids are left out"
    told = (result.settings.get("checkpoint") for result in results)
    yield from dict.fromkeys(text for text in told if text)


def write_chart(
    results: Sequence[Result],
    path: str | Path,
    *,
    measure: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> None:
    """Draws a PNG bar chart with 95 % intervals, systems grouped by collection."""
    from matplotlib.figure import Figure

    measure = measure or results[0].primary
    collections = list(dict.fromkeys(r.collection for r in results))
    systems = list(dict.fromkeys(r.system for r in results))
    count = len(collections) * (len(systems) + 1)
    figure = Figure(figsize=(8, 1.4 + 0.28 * count), layout="constrained")
    axes = figure.add_subplot()
    for number, system in enumerate(systems):
        mine = [r for r in results if r.system == system]
        found = [r.interval(measure, resamples, seed) for r in mine]
        place = [_place(r, collections, len(systems), number) for r in mine]
        means = np.array([f.mean for f in found])
        error = [means - [f.low for f in found], [f.high for f in found] - means]
        axes.barh(
            place, means, 0.9, xerr=error, label=system, error_kw={"capsize": 2.5}
        )
        for where, interval in zip(place, found, strict=True):
            text = f"{interval.mean:.3f}"
            axes.text(interval.high + 0.008, where, text, va="center", fontsize=8)
    middle = (len(systems) - 1) / 2
    axes.set_yticks(
        [i * (len(systems) + 1) + middle for i in range(len(collections))], collections
    )
    axes.invert_yaxis()
    axes.set_xlim(0, _right_end(results, measure, resamples, seed))
    label = measure_of(measure).label
    axes.set_xlabel(f"{label}, mean over queries with 95 % bootstrap interval")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=min(len(systems), 3), frameon=False)
    figure.savefig(path, dpi=150)


def _place(result: Result, collections: list[str], systems: int, number: int) -> float:
    return collections.index(result.collection) * (systems + 1) + number


def _right_end(
    results: Iterable[Result], measure: str, resamples: int, seed: int
) -> float:
    """Right end of the axis, with room for the longest interval and its number."""
    return max(r.interval(measure, resamples, seed).high for r in results) + 0.1


def _interval(values: dict[str, float], sign: str = "") -> str:
    mean, low, high = (_short(values[name], sign) for name in ("mean", "low", "high"))
    return rf"{mean} \[{low} {high}]"  # rich reads a bare [ as markup


def _short(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}".replace("0.", ".")


def _stored(result: Result) -> dict[str, Any]:
    return {
        "system": result.system,
        "collection": result.collection,
        "settings": result.settings,
        "query_ids": result.query_ids,
        "scores": {name: s.round(6).tolist() for name, s in result.scores.items()},
    }


def _restored(row: dict[str, Any]) -> Result:
    scores = {name: np.array(values) for name, values in row["scores"].items()}
    return Result(
        row["system"], row["collection"], row["query_ids"], scores, row["settings"]
    )
