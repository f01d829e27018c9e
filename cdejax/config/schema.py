"""Configuration of every stage: frozen dataclasses, read from YAML.

A recipe is one YAML file, read by `cdejax.config.load.load_config`. `variants` in it
name experiments that share all stages that their overrides leave alone. Impossible
values are refused here, when a dataclass is made: ValueError with the field, the value
and what would be right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from cdejax.folders.paths import local_output

VALIDATION_SHARE = 0.2
"""Of the held-out pairs, where checkpoints are chosen and nothing else is said."""


def _at_least(config: object, low: float, *names: str) -> None:
    """Refuses fields below `low`; None (no limit set) passes."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < low:
            raise ValueError(f"{name}: {value} is too small, at least {low} is needed")


def _above_zero(config: object, *names: str) -> None:
    """Refuses fields that are not positive."""
    for name in names:
        value = getattr(config, name)
        if value <= 0:
            raise ValueError(f"{name}: {value} must be greater than 0")


def _share(config: object, *names: str) -> None:
    """Refuses fields outside 0 <= value < 1."""
    for name in names:
        value = getattr(config, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name}: {value} must be at least 0 and less than 1")


def _required(config: object, reason: str, *names: str) -> None:
    """Refuses empty fields."""
    for name in names:
        if not getattr(config, name):
            raise ValueError(f"{name}: needed {reason}")


def _folder_name(field_name: str, name: str) -> None:
    """Refuses names that cannot be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{field_name}: {name!r} becomes a folder: use letters, digits, `.`, `_` "
            "and `-` only"
        )


@dataclass(frozen=True)
class ColumnsConfig:
    """Which field of a source row holds what."""

    query: str = "query"
    """Field with the query text."""
    document: str = "document"
    """Field with the text of the document that answers the query."""
    negatives: str | None = None
    """Field with a list of hard negative texts."""
    domain: str | None = None
    """Field with the domain; batches never mix domains."""
    query_id: str | None = None
    """Field with the query's id (default: the text is its own identity)."""
    document_id: str | None = None
    """Field with the document's id (default: the text is its own identity)."""

    def __post_init__(self) -> None:
        _required(self, "to read the pairs", "query", "document")


@dataclass(frozen=True)
class SourceConfig:
    """One source of pairs."""

    path: str
    """`python-packages`, a .jsonl, .csv, .tsv or .parquet file (or a glob), a BEIR
    folder[:SPLIT], `hf:NAME[/CONFIG][:SPLIT]` or `tfds:NAME[/CONFIG][:SPLIT]`."""
    columns: ColumnsConfig = ColumnsConfig()
    """How the source's fields map to ours."""
    domain: str | None = None
    """Domain of all rows, for sources without a domain column."""
    license: str | None = None
    """Licence of the data, for the model card."""
    packages: tuple[str, ...] = ()
    """`python-packages`: distributions to read beside the standard library."""

    def __post_init__(self) -> None:
        _required(self, "to read the pairs", "path")
        if self.packages and self.path != "python-packages":
            raise ValueError(
                f"packages: only read with `path: python-packages`, not {self.path!r}"
            )


@dataclass(frozen=True)
class DataConfig:
    """Pairs: where they come from, how they are checked and split."""

    sources: tuple[SourceConfig, ...] = ()
    """Sources, read in this order."""
    on_invalid: Literal["error", "skip"] = "error"
    """What a bad row does: stop the run (all bad rows are listed) or be counted."""
    max_characters: int = 1_000_000
    """A text longer than this is a bad row."""
    heldout_fraction: float = 0.0
    """Share of the pairs held out for evaluation, in whole groups: pairs of equal
    query, equal document or near-duplicate documents stay together."""
    heldout_rows: int | None = None
    """Hold out this many pairs at most (alone: this many, whatever their share)."""
    near_duplicate: float = 0.7
    """Documents whose estimated Jaccard similarity of word 3-grams reaches this stay on
    one side of the split."""
    max_rows: int | None = None
    """Keep this many training pairs, drawn by the seed (default: all)."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_characters", "heldout_rows", "max_rows")
        _share(self, "heldout_fraction")
        if not 0 < self.near_duplicate <= 1:
            raise ValueError(
                f"near_duplicate: {self.near_duplicate} must be greater than 0 and at "
                "most 1"
            )


@dataclass(frozen=True)
class SideConfig:
    """How one side of a pair becomes tokens."""

    prefix: str | None = None
    """Text put before every text of this side (default: the prompt of the folder
    `model.encoder`, if it has one; "": none)."""
    max_length: int = 128
    """Longest sequence in tokens, special tokens included; what is cut is counted."""
    domain_prefixes: dict[str, str] = field(default_factory=dict)
    """Prefixes of single domains, in place of `prefix`."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_length")


@dataclass(frozen=True)
class TokensConfig:
    """Tokens: one pass over the texts with the encoder's own tokenizer."""

    query: SideConfig = SideConfig(max_length=64)
    """Query side."""
    document: SideConfig = SideConfig(max_length=256)
    """Document side."""
    context: SideConfig | None = None
    """Documents as the first stage reads them: the document side at another length
    (default: at the same)."""

    def __post_init__(self) -> None:
        if self.context is None:
            return
        for name in ("prefix", "domain_prefixes"):
            ours, theirs = getattr(self.context, name), getattr(self.document, name)
            if ours not in (theirs, None):
                raise ValueError(
                    f"context: its {name} {ours!r} must be that of `document`, "
                    f"{theirs!r}: the first stage reads documents"
                )


@dataclass(frozen=True)
class VectorsConfig:
    """Surrogate vectors, which decide clusters and the false-negative mask."""

    method: Literal["tfidf", "encoder", "file"] = "tfidf"
    """TF-IDF + truncated SVD, an encoder folder, or the user's own .npy files."""
    dim: int = 128
    """tfidf: dimension after truncated SVD."""
    encoder: str | None = None
    """encoder: a folder that `cdejax.load` reads."""
    batch_size: int = 256
    """encoder: texts a batch."""
    query_prefix: str | None = None
    """encoder: text put before every query (default: the folder's prompt; "": none)."""
    document_prefix: str | None = None
    """encoder: the same for documents."""
    queries: str | None = None
    """file: .npy of shape [queries, dim], in the order of the pairs artefact."""
    documents: str | None = None
    """file: .npy of shape [documents, dim], in the order of the pairs artefact."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "dim", "batch_size")
        if self.method == "encoder":
            _required(self, "with `method: encoder`: a folder", "encoder")
        if self.method == "file":
            _required(self, "with `method: file`: a .npy", "queries", "documents")


@dataclass(frozen=True)
class ClustersConfig:
    """Spherical k-means within each domain."""

    vectors: Literal["paired", "query", "document", "concat"] = "paired"
    """What is clustered: [q;d] and [d;q] (CDE), queries, documents, or [q;d] alone."""
    cluster_size: int = 64
    """Mean rows per cluster: k = ceil(rows / cluster_size)."""
    k: int | None = None
    """Clusters per domain, in place of `cluster_size`."""
    svd_dim: int | None = None
    """Truncated SVD of the vectors (fitted on queries) before clustering."""
    niter: int = 100
    """k-means iterations."""
    nredo: int = 3
    """k-means restarts; the best objective wins."""
    points_per_centroid: int = 256
    """Training points per centroid at most; the number used is in the manifest."""
    backend: Literal["auto", "faiss", "jax"] = "auto"
    """What computes k-means: FAISS on the CPU, or all devices of the process (auto:
    these where they are accelerators)."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "cluster_size", "k", "svd_dim", "niter", "nredo")
        _at_least(self, 1, "points_per_centroid")


@dataclass(frozen=True)
class PlanConfig:
    """Batch plan: which rows form which batch."""

    kind: Literal["clustered", "shuffled", "by_domain", "file"] = "clustered"
    """Clusters packed into batches, plain shuffling, shuffling within domains, or the
    user's own plan."""
    batch_size: int = 512
    """Pairs a step, over all devices."""
    epochs: int = 1
    """Passes over the data, each with batches of its own."""
    order: Literal["random", "tsp_greedy"] = "tsp_greedy"
    """clustered: order in which clusters are laid out before they are cut."""
    min_domain: Literal["error", "drop"] = "error"
    """What a domain smaller than a batch does."""
    domain_groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Domains to merge: {new name: (domain, …)}; names may end in `*`."""
    path: str | None = None
    """file: .npy of shape [steps, batch] with row numbers of the training pairs."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_size", "epochs")
        if self.kind == "file":
            _required(self, "with `kind: file`: a .npy", "path")


@dataclass(frozen=True)
class ModelConfig:
    """The model and what it starts from."""

    kind: Literal["biencoder", "contextual"] = "biencoder"
    """One encoder, or the two-stage contextual encoder of CDE."""
    encoder: str = ""
    """Folder (or `package:NAME/FOLDER` of an installed package) with the encoder and
    tokenizer that training starts from."""
    layers: int | None = None
    """Keep the encoder's first layers only."""
    first_stage_layers: int | None = None
    """contextual: the same for the first stage (default: `layers`)."""
    pooling: (
        Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"] | None
    ) = None
    """Pooling of token states (default: as the folder says, else `mean`). The last
    three are for biencoders."""
    head: Literal["none", "mlp"] = "none"
    """biencoder: head after pooling."""
    context_size: int = 512
    """contextual: documents that the second stage reads, C."""
    soft_tokens: int = 8
    """contextual: learned tokens between context and text."""
    sequence_dropout: float = 0.005
    """contextual: probability that a context vector is replaced by the null vector."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "layers", "first_stage_layers", "context_size")
        _at_least(self, 1, "soft_tokens")
        _share(self, "sequence_dropout")


@dataclass(frozen=True)
class TrainingConfig:
    """The optimisation."""

    init_from: str | None = None
    """Checkpoint or export folder whose weights the run starts from (new data, new
    optimiser state)."""
    learning_rate: float = 2e-5
    """Peak learning rate of AdamW."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Shape after warm-up."""
    warmup_steps: int = 0
    """Steps of linear warm-up."""
    weight_decay: float = 0.01
    """AdamW decay, on matrices only: no biases, norm weights or single vectors."""
    clip_norm: float = 1.0
    """Largest global gradient norm."""
    temperature: float = 0.02
    """Temperature of the softmax: logits are cosines divided by it."""
    duplicates: Literal["ignore", "positive"] = "ignore"
    """What a cell is whose document is another positive of the query."""
    false_negative_margin: float | None = 0.0
    """Cells whose surrogate score reaches the positive's plus this margin are left out
    of the denominator (none: no mask)."""
    negatives_per_query: int = 0
    """Hard negatives per query, where the source has them."""
    chunk_tokens: int | None = None
    """Token positions encoded at once on a device, a context's included (none: by the
    device's memory and the model's size)."""
    cpu_activations: float = 2.0
    """GiB of activations that the CPU devices of a process keep for the backward pass
    instead of computing them again (accelerators keep what fits their memory)."""
    loss_block: int = 1024
    """Columns of the score matrix held at once."""
    ring: bool = False
    """Documents' vectors pass from device to device in the loss instead of being
    gathered by all: for batches of which no device is to hold all of them."""
    packed: bool = True
    """Several texts share a row where they have no context of their own; if not, rows
    of few widths hold one each."""
    max_widths: int = 8
    """Widths of rows of one text at most: more save padding, but each one is a copy of
    the encoder in the compiled step."""
    fsdp: int = 1
    """Devices that share the parameters of a model which does not fit one (1: every
    device holds them while it computes)."""
    eval_every: int = 0
    """Steps between evaluations on the held-out rows (0: at the end only)."""
    checkpoint_every: int = 500
    """Steps between checkpoints (one is always written at the end)."""
    checkpoint_minutes: float | None = None
    """Minutes after which one is written in any case (none: steps alone count); in one
    process only."""
    keep_checkpoints: int = 2
    """Latest checkpoints kept, beside the best."""
    log_every: int = 1
    """Steps between lines of metrics.jsonl."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Activations (auto: bfloat16 on GPU and TPU, float32 on CPU)."""
    read_threads: int = 4
    """Loader threads; batches do not depend on it."""
    compilation_cache: str | None = None
    """Folder that keeps what was compiled, for runs that are started again or differ in
    nothing that is compiled (none: every process compiles anew)."""

    def __post_init__(self) -> None:
        _above_zero(self, "learning_rate", "clip_norm", "temperature")
        _at_least(self, 0, "warmup_steps", "weight_decay", "negatives_per_query")
        _at_least(self, 0, "eval_every", "cpu_activations")
        _at_least(self, 1, "loss_block", "max_widths", "fsdp", "checkpoint_every")
        _at_least(self, 1, "keep_checkpoints", "log_every", "read_threads")
        if self.compilation_cache is not None:
            local_output(self.compilation_cache, "compilation_cache")
        if self.chunk_tokens is not None:
            _at_least(self, 1, "chunk_tokens")
        if self.checkpoint_minutes is not None:
            _above_zero(self, "checkpoint_minutes")


@dataclass(frozen=True)
class EvaluationConfig:
    """Retrieval evaluation."""

    collections: tuple[str, ...] = ()
    """BEIR folders (FOLDER or FOLDER:SPLIT, default split `test`)."""
    unknown_ids: Literal["skip", "error"] = "skip"
    """Judgments of queries or documents that a collection does not hold: leave them out
    and count them, or stop."""
    ignore_identical_ids: bool = False
    """Leave documents with the query's id out of its ranking, as BEIR does, whatever
    they say (default: only those that have its text, too)."""
    heldout: bool = True
    """Evaluate on the held-out pairs."""
    heldout_by_domain: bool = False
    """Evaluate each domain of the held-out pairs alone, too."""
    validation_fraction: float | None = None
    """Share of the held-out pairs that checkpoints are chosen on, and that no report
    shows (default: 0.2 if `training.eval_every` is set, all if no report shows held-out
    pairs, else 0)."""
    bm25: bool = True
    """Put BM25 beside it."""
    contexts: tuple[Literal["corpus", "null", "random", "other-domain"], ...] = (
        "corpus",
    )
    """contextual: where the context comes from."""
    batch_size: int = 128
    """Texts encoded at once."""
    bootstrap: int = 2000
    """Resamples for the 95 % paired-bootstrap intervals."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "batch_size")
        _at_least(self, 2, "bootstrap")
        if self.validation_fraction is not None:
            _share(self, "validation_fraction")


@dataclass(frozen=True)
class Config:
    """A recipe: all stages of one experiment, or of several variants of it."""

    name: str = "run"
    """Name of the recipe."""
    output: str = "runs"
    """Folder for artefacts, checkpoints and reports."""
    seed: int = 0
    """Seed of everything that is drawn."""
    data: DataConfig = DataConfig()
    tokens: TokensConfig = TokensConfig()
    vectors: VectorsConfig = VectorsConfig()
    clusters: ClustersConfig = ClustersConfig()
    plan: PlanConfig = PlanConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Experiments: {name: overrides}, each a nested mapping like the recipe itself."""

    def __post_init__(self) -> None:
        _folder_name("name", self.name)
        local_output(self.output, "output")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: {self.seed} must be at least 0 and below 2^31")
        for name in self.variants:
            _folder_name("variants", name)
        if self.training.eval_every and self.evaluation.validation_fraction == 0:
            raise ValueError(
                "evaluation.validation_fraction: 0 leaves no pairs for "
                "training.eval_every to choose checkpoints on; leave it out, or set "
                "eval_every to 0"
            )
        for name in {"artifacts", "report"} & self.variants.keys():
            raise ValueError(f"variants: `{name}` is a folder that all variants share")

    @property
    def validation_share(self) -> float:
        """Share of the held-out pairs that checkpoints are chosen on."""
        evaluation = self.evaluation
        if evaluation.validation_fraction is not None:
            return evaluation.validation_fraction
        if not self.training.eval_every:
            return 0.0
        shown = evaluation.heldout or evaluation.heldout_by_domain
        return VALIDATION_SHARE if shown else 1.0
