"""Spherical k-means: ours on devices against FAISS (or NumPy) on the CPU.

    python benchmarks/kmeans.py [--rows N --dim D --k K --niter I --peer faiss]

Both train on the same points from the same first centroids and assign all rows. Prints
seconds per iteration (compilation apart), seconds of the assignment, and the objective:
the mean cosine of a row to its centroid. JSON and a picture go to benchmarks/results.
Points are a mixture of four times as many topics as centroids, of uneven sizes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from checks import check_least, check_peer, refuse
from reporting import RESULTS, environment, file_of, save

from cdejax.clustering import jax_kmeans
from cdejax.clustering.jax_kmeans import first_rows, split_empty
from cdejax.clustering.kmeans import BLOCK
from cdejax.clustering.vectors import unit_rows
from cdejax.config import ClustersConfig

Nearest = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Options:
    """Sizes; the defaults of `clusters` in a recipe are niter 100, nredo 3."""

    rows: int = 1_000_000
    dim: int = 128
    k: int = 2000
    niter: int = 5
    nredo: int = 1
    points_per_centroid: int = 256
    """Points that are trained on, per centroid, at most."""
    peer: Literal["faiss", "numpy", "none"] = "faiss"
    seed: int = 0
    name: str = "kmeans"
    """First part of the files' names in benchmarks/results, before card and date."""


def mixture(options: Options) -> np.ndarray:
    """Unit vectors round random directions."""
    rng = np.random.default_rng(options.seed)
    topics = 4 * options.k
    centres = unit_rows(rng.normal(size=(topics, options.dim)))
    weights = rng.dirichlet(np.full(topics, 0.5))
    out = np.empty((options.rows, options.dim), np.float32)
    for start in range(0, options.rows, BLOCK):
        part = out[start : start + BLOCK]
        noise = rng.standard_normal(part.shape, np.float32) / np.sqrt(options.dim)
        topic = rng.choice(topics, len(part), p=weights)
        part[:] = unit_rows(centres[topic] + np.float32(0.8) * noise)
    return out


def assign(points: np.ndarray, nearest: Nearest) -> tuple[np.ndarray, float, float]:
    """Ids of all rows, seconds, and of all threads; the first block is done before."""
    nearest(points[:BLOCK])
    start, cpu = time.perf_counter(), time.process_time()
    starts = range(0, len(points), BLOCK)
    ids = np.concatenate([nearest(points[i : i + BLOCK]) for i in starts])
    return ids, time.perf_counter() - start, time.process_time() - cpu


def objective(points: np.ndarray, centroids: np.ndarray, ids: np.ndarray) -> float:
    starts = range(0, len(points), BLOCK)
    sums = [
        np.einsum("nd,nd->", points[i : i + BLOCK], centroids[ids[i : i + BLOCK]])
        for i in starts
    ]
    return float(np.sum(sums, dtype=np.float64) / len(points))


def ours(training: np.ndarray, settings: ClustersConfig, k: int, seed: int):
    """Centroids, how to assign, and what training took.

    `first_seconds` are those of compiling, sending the points and one iteration, before
    all else. CPU seconds, beside the clock's, tell a busy machine from a slow program;
    they hold that first iteration, too.
    """
    start = time.perf_counter()
    once = ClustersConfig(niter=1, nredo=1)
    jax_kmeans.train(training, k, once, seed)
    first = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(jax_kmeans._to_tiles(training, jax_kmeans.local_mesh()))
    transfer = time.perf_counter() - start
    ends: list[float] = []
    start = time.perf_counter()
    centroids = jax_kmeans.train(
        training, k, settings, seed, lambda: ends.append(time.perf_counter())
    )
    seconds = time.perf_counter() - start
    steps = np.diff([start + transfer, *ends])
    iteration = float(np.median(steps[1:] if len(ends) > 1 else steps))
    return centroids, jax_kmeans.nearest(centroids), {
        "iterations": len(ends),
        "train_seconds": seconds,
        "seconds_per_iteration": iteration,
        "transfer_seconds": transfer,
        "first_seconds": first,
    }  # fmt: skip


def faiss_peer(training: np.ndarray, settings: ClustersConfig, k: int, seed: int):
    """As `ours`; FAISS tells how much of an iteration is search."""
    import faiss

    from cdejax.clustering import faiss_kmeans

    kmeans = faiss.Kmeans(
        training.shape[1],
        k,
        niter=settings.niter,
        nredo=settings.nredo,
        seed=seed,
        spherical=True,
        max_points_per_centroid=-(-len(training) // k),
        min_points_per_centroid=1,
    )
    start = time.perf_counter()
    kmeans.train(training)
    seconds = time.perf_counter() - start
    stats = list(kmeans.iteration_stats or ())  # of the best restart
    centroids = np.asarray(kmeans.centroids)
    return centroids, faiss_kmeans.nearest(centroids), {
        "iterations": len(stats),
        "train_seconds": seconds,
        "seconds_per_iteration": stats[-1]["time"] / len(stats),
        "search_share": stats[-1]["time_search"] / stats[-1]["time"],
        "objectives": [s["obj"] / len(training) for s in stats],
        "threads": faiss.omp_get_max_threads(),
    }  # fmt: skip


def numpy_peer(training: np.ndarray, settings: ClustersConfig, k: int, seed: int):
    """As `ours`: Lloyd's iterations with one BLAS product per block of points."""

    def nearest(centroids: np.ndarray) -> Nearest:
        def find(points: np.ndarray) -> np.ndarray:
            parts = np.array_split(points, -(-len(points) // 8192))
            return np.concatenate([(part @ centroids.T).argmax(1) for part in parts])

        return find

    best, best_objective, steps, search = training[:k], -np.inf, 0, 0.0
    begun = time.perf_counter()
    for redo in range(settings.nredo):
        rows = first_rows(len(training), k, seed + 1 + redo * 15486557)
        centroids, ids = training[rows], rows
        for _ in range(settings.niter):
            start = time.perf_counter()
            ids = nearest(centroids)(training)
            search += time.perf_counter() - start
            order = np.argsort(ids, kind="stable")
            found, starts = np.unique(ids[order], return_index=True)
            centroids = np.zeros_like(centroids)
            centroids[found] = np.add.reduceat(training[order], starts)
            counts = np.bincount(ids, minlength=k)
            if not counts.all():
                centroids = split_empty(unit_rows(centroids), counts, len(training))
            centroids = unit_rows(centroids)
            steps += 1
        value = objective(training, centroids, ids)
        if value > best_objective:
            best, best_objective = centroids, value
    seconds = time.perf_counter() - begun
    return best, nearest(best), {
        "iterations": steps,
        "train_seconds": seconds,
        "seconds_per_iteration": seconds / steps,
        "search_share": search / seconds,
    }  # fmt: skip


def measure(points: np.ndarray, training: np.ndarray, train: Any, options: Options):
    settings = ClustersConfig(niter=options.niter, nredo=options.nredo)
    cpu = time.process_time()
    centroids, nearest, found = train(training, settings, options.k, options.seed)
    found["train_cpu_seconds"] = time.process_time() - cpu
    ids, seconds, cpu = assign(points, nearest)
    found["assign_cpu_seconds"] = cpu
    found["assign_seconds"] = seconds
    found["assign_rows_per_second"] = len(points) / seconds
    found["objective"] = objective(points, centroids, ids)
    iteration = found["seconds_per_iteration"]
    found["default_train_hours"] = 300 * iteration / 3600
    print(
        f"  {iteration:.3f} s an iteration ({found['iterations']} of them), "
        f"assignment {seconds:.2f} s, objective {found['objective']:.5f}; niter 100 "
        f"and nredo 3: up to {found['default_train_hours']:.2f} h\n  {found}",
        flush=True,
    )
    return found


def draw(results: dict[str, dict[str, Any]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    keys = {
        "seconds_per_iteration": "training: seconds an iteration",
        "assign_seconds": "assignment of all rows: seconds",
        "objective": "objective (mean cosine)",
    }
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    for axis, (key, label) in zip(axes, keys.items(), strict=True):
        bars = axis.bar(list(results), [found[key] for found in results.values()])
        axis.bar_label(bars, fmt="%.4g")
        axis.set_title(label, fontsize=10)
        axis.margins(y=0.15)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def check(options: Options) -> None:
    """Ends the program if there is nothing to measure."""
    sizes = ("rows", "dim", "k", "niter", "nredo", "points_per_centroid")
    check_least(options, 1, *sizes)
    check_least(options, 0, "seed")
    if options.k > options.rows:
        refuse(
            f"--k {options.k}: more centroids than --rows {options.rows}; give fewer"
        )
    if options.peer == "faiss":
        check_peer("faiss", faiss="faiss-cpu")


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    check(options)
    points = mixture(options)
    rng = np.random.default_rng(options.seed)
    most = min(options.rows, options.k * options.points_per_centroid)
    training = points[np.sort(rng.choice(options.rows, most, replace=False))]
    trains = {"faiss": faiss_peer, "numpy": numpy_peer}
    chosen = {"ours": ours} | {n: t for n, t in trains.items() if n == options.peer}
    facts = environment("faiss-cpu", "scikit-learn")
    title = (
        f"{options.rows:,} x {options.dim}, k = {options.k:,}, trained on {most:,}; "
        f"ours on {facts['devices']}, peer on {facts['threads']} threads"
    )
    print(title, flush=True)
    results = {}
    for name, train in chosen.items():
        print(name, flush=True)
        results[name] = measure(points, training, train, options)
    if len(results) == 2:
        ours_, peer = results.values()
        ratios = {
            key: peer[key] / ours_[key]
            for key in ("seconds_per_iteration", "assign_seconds", "objective")
        }
        print({f"{options.peer} / ours, {key}": v for key, v in ratios.items()})
    result = {"options": asdict(options), "trained_on": most, **facts, **results}
    path = file_of(RESULTS, options.name, facts["date"])
    save(path, result, sys.argv)
    draw(results, title, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
