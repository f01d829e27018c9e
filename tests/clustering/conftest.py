"""A small pairs artefact with three domains."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdejax.clustering.kmeans import clusters_stage
from cdejax.clustering.vectors import vectors_stage
from cdejax.config import (
    ClustersConfig,
    ColumnsConfig,
    Config,
    DataConfig,
    PlanConfig,
    SourceConfig,
    VectorsConfig,
)
from cdejax.data.pairs import Pairs, pairs_stage

BASE = Config(
    vectors=VectorsConfig(dim=16),
    clusters=ClustersConfig(cluster_size=6),
    plan=PlanConfig(batch_size=10, epochs=3, min_domain="drop"),
)
SIZES = {"birds": 45, "stars": 70, "tools": 6}


def rows():
    """One pair per number; words tie a query to its document and its domain."""
    for domain, size in SIZES.items():
        for i in range(size):
            topic, detail = (
                f"{domain}topic{chr(97 + i % 5)}",
                f"detail{chr(97 + i % 7)}",
            )
            yield {
                "query": f"{domain} {topic} question {i}",
                "document": f"{domain} {topic} {detail} answer {i} {domain}",
                "domain": domain,
            }


def write_pairs(folder: Path, lines) -> Path:
    """Runs the pairs stage on rows given as mappings with a domain."""
    source = folder / "pairs.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = ColumnsConfig(domain="domain")
    data = DataConfig(sources=(SourceConfig(str(source), columns),))
    return pairs_stage(Config(data=data), folder / "artifacts")


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory) -> Path:
    """121 pairs: 45 about birds, 70 about stars, 6 about tools."""
    return write_pairs(tmp_path_factory.mktemp("pairs"), rows())


@pytest.fixture(scope="session")
def vectors_folder(tmp_path_factory, pairs_folder) -> Path:
    """Surrogate vectors of these pairs."""
    return vectors_stage(BASE, tmp_path_factory.mktemp("vectors"), pairs_folder)


@pytest.fixture(scope="session")
def clusters_folder(tmp_path_factory, pairs_folder, vectors_folder) -> Path:
    """Clusters of these pairs."""
    root = tmp_path_factory.mktemp("clusters")
    return clusters_stage(BASE, root, pairs_folder, vectors_folder)


@pytest.fixture
def domain(pairs_folder) -> np.ndarray:
    """Name of each training pair's domain."""
    pairs = Pairs.open(pairs_folder)
    return np.array(pairs.domains)[pairs.train.domain]


def with_plan(**changes) -> Config:
    """The base recipe with another plan."""
    return replace(BASE, plan=replace(BASE.plan, **changes))
