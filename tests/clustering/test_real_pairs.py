"""From real texts to batches, and what the heavy libraries cost those who need none."""

import gzip
import itertools
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np

from cdejax.clustering.hardness import hardness_report
from cdejax.clustering.kmeans import Clusters, clusters_stage
from cdejax.clustering.plan import Plan, plan_stage
from cdejax.clustering.vectors import Vectors, vectors_stage
from cdejax.config import (
    ClustersConfig,
    Config,
    PlanConfig,
    TrainingConfig,
    VectorsConfig,
)
from cdejax.data.pairs import Pairs
from cdejax.storage.artifacts import read_manifest
from tests.clustering.conftest import write_pairs


def test_real_pairs_become_hard_batches(tmp_path, shared_data):
    lines = []
    for name in ("medquad", "papers", "tldr"):
        with gzip.open(shared_data / "pairs" / f"{name}.jsonl.gz", "rt") as stream:
            rows = map(json.loads, itertools.islice(stream, 700))
            lines += [{**row, "domain": name} for row in rows]
    pairs_folder = write_pairs(tmp_path, lines)
    config = Config(
        vectors=VectorsConfig(dim=64),
        clusters=ClustersConfig(cluster_size=32),
        plan=PlanConfig(batch_size=64, epochs=2),
        training=TrainingConfig(false_negative_margin=0.05),
    )
    vectors = vectors_stage(config, tmp_path, pairs_folder)
    clusters = clusters_stage(config, tmp_path, pairs_folder, vectors)
    plan = plan_stage(config, tmp_path, pairs_folder, {"clusters": clusters})
    pairs = Pairs.open(pairs_folder)
    report = hardness_report(
        config,
        pairs,
        Vectors.open(vectors),
        Clusters.open(clusters),
        Plan.open(plan),
        tmp_path / "report",
    )
    counts = read_manifest(plan)["counts"]
    for domain in counts["domains"].values():
        assert domain["dropped"] == [domain["rows"] % 64] * 2
    for side in ("queries", "documents"):
        cosine = report["clusters"]["mean_cosine"][side]
        assert cosine["cluster"] > cosine["domain"] + 0.1 > cosine["all"] + 0.1
    assert report["planned"]["top1"] < report["random_in_domain"]["top1"] - 0.05
    assert report["random_in_domain"]["top1"] < report["random"]["top1"]
    assert report["planned"]["masked"] > report["random"]["masked"]
    # Packed by a tour, neighbours share batches more than by chance.
    by_chance = replace(config, plan=replace(config.plan, order="random"))
    other = Plan.open(
        plan_stage(by_chance, tmp_path, pairs_folder, {"clusters": clusters})
    )
    documents = Vectors.open(vectors).documents[pairs.train.document]
    assert inner_cosine(Plan.open(plan), documents) > inner_cosine(other, documents)


def inner_cosine(plan, documents):
    batches = [documents[plan.rows(step)] for step in range(plan.total_steps)]
    return np.mean([(x @ x.T).mean() for x in batches])


LAZY = """
import sys
import cdejax.clustering.hardness, cdejax.clustering.vectors
heavy = {"faiss", "sklearn", "scipy", "matplotlib", "torch", "jax"}
print(sorted(heavy & set(sys.modules)))
"""


def test_heavy_libraries_are_loaded_when_used_only():
    child = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == "[]"
