"""Configuration of the batch plan: surrogate vectors, clusters, batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cdejax.config.checks import check_at_least, check_given


@dataclass(frozen=True)
class VectorsConfig:
    """Surrogate vectors, used for clustering and for the false-negative mask."""

    method: Literal["tfidf", "encoder", "file"] = "tfidf"
    """TF-IDF with truncated SVD, an encoder folder, or precomputed .npy files."""
    dim: int = 128
    """tfidf: dimension after truncated SVD."""
    encoder: str | None = None
    """encoder: a folder that `cdejax.load` can read."""
    batch_size: int = 256
    """encoder: texts per batch."""
    query_prefix: str | None = None
    """encoder: prefix of every query (default: the folder's prompt; "": none)."""
    document_prefix: str | None = None
    """encoder: prefix of every document."""
    queries: str | None = None
    """file: .npy of shape [queries, dim], in the order of the pairs artefact."""
    documents: str | None = None
    """file: .npy of shape [documents, dim], in the order of the pairs artefact."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "dim", "batch_size")
        if self.method == "encoder":
            check_given(self, "with `method: encoder`: a folder", "encoder")
        if self.method == "file":
            check_given(self, "with `method: file`: a .npy", "queries", "documents")


@dataclass(frozen=True)
class ClustersConfig:
    """Spherical k-means within each domain."""

    vectors: Literal["paired", "query", "document", "concat"] = "paired"
    """What to cluster: [q;d] and [d;q] (as CDE), queries, documents, or only [q;d]."""
    cluster_size: int = 64
    """Mean number of rows per cluster: k = ceil(rows / cluster_size)."""
    k: int | None = None
    """Number of clusters per domain; replaces `cluster_size`."""
    svd_dim: int | None = None
    """Dimension of a truncated SVD (fitted on queries) applied before clustering."""
    niter: int = 100
    """Number of k-means iterations."""
    nredo: int = 3
    """Number of k-means restarts; the one with the best objective is used."""
    points_per_centroid: int = 256
    """Maximum training points per centroid; the number used is in the manifest."""
    backend: Literal["auto", "faiss", "jax"] = "auto"
    """Where k-means runs: FAISS on the CPU, or JAX on all devices of the process (auto:
    JAX if they are accelerators)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "cluster_size", "k", "svd_dim", "niter", "nredo")
        check_at_least(self, 1, "points_per_centroid")


@dataclass(frozen=True)
class PlanConfig:
    """The batch plan: which rows form which batch."""

    kind: Literal["clustered", "shuffled", "by_domain", "file"] = "clustered"
    """Clusters packed into batches, shuffling, shuffling within domains, or a plan
    from a file."""
    batch_size: int = 512
    """Pairs per step, over all devices."""
    epochs: int = 1
    """Passes over the data, each with its own batches."""
    order: Literal["random", "tsp_greedy"] = "tsp_greedy"
    """clustered: order of the clusters before they are cut into batches."""
    min_domain: Literal["error", "drop"] = "error"
    """How to handle domains smaller than a batch."""
    domain_groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Domains to merge: {new name: (domain, …)}; `*` stands for any characters."""
    path: str | None = None
    """file: .npy of shape [steps, batch] with row numbers of the training pairs."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size", "epochs")
        if self.kind == "file":
            check_given(self, "with `kind: file`: a .npy", "path")
