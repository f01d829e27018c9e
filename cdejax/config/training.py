"""Configuration of the optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdejax.config.checks import check_at_least, check_positive
from cdejax.folders.paths import local_output


@dataclass(frozen=True)
class TrainingConfig:
    """Optimiser, loss, memory, checkpoints and logging of training."""

    init_from: str | None = None
    """Checkpoint or export folder whose weights initialise the run (with new data and a
    new optimiser state)."""
    learning_rate: float = 2e-5
    """Peak learning rate of AdamW."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate schedule after warm-up."""
    warmup_steps: int = 0
    """Number of linear warm-up steps."""
    weight_decay: float = 0.01
    """AdamW weight decay, applied to matrices only (not to biases, norm weights or any
    vector)."""
    clip_norm: float = 1.0
    """Maximum global gradient norm; larger gradients are scaled down to it."""
    objective: Literal["info_nce"] = "info_nce"
    """The objective: `info_nce`, the softmax cross-entropy of the positives over
    in-batch and hard negatives."""
    temperature: float = 0.02
    """Temperature of the softmax: logits are cosines divided by it."""
    duplicates: Literal["ignore", "positive"] = "ignore"
    """How to treat a document that is another positive of the query."""
    false_negative_margin: float | None = 0.0
    """Logits whose surrogate score reaches the positive's plus this margin are left out
    of the denominator as likely false negatives (none: no mask)."""
    negatives_per_query: int = 0
    """Number of hard negatives per query, where the source has them."""
    chunk_tokens: int | None = None
    """Token positions encoded at once on a device, those of a context included (none:
    chosen from the device's memory and the model's size)."""
    cpu_activations: float = 2.0
    """GiB of activations that the CPU devices of a process save for the backward pass
    instead of recomputing them (accelerators save what fits into their memory)."""
    loss_block: int = 1024
    """Number of columns of the score matrix held in memory at once."""
    ring: bool = False
    """Pass document vectors from device to device in the loss instead of gathering them
    all on every device: for batches too large for that."""
    packed: bool = True
    """Pack several texts into a row, unless they are encoded with a context; otherwise
    pad every text to one of a few row widths."""
    max_widths: int = 8
    """Maximum number of padded row widths: more save padding, but each adds a copy of
    the encoder to the compiled step."""
    fsdp: int = 1
    """Number of devices that the parameters are sharded over, for a model that does not
    fit on one (1: every device gathers all of them for a step)."""
    eval_every: int = 0
    """Steps between evaluations on the held-out pairs (0: only at the end)."""
    select_by: str = "nDCG@10"
    """Measure on the held-out pairs by which the best checkpoint is selected."""
    checkpoint_every: int = 500
    """Steps between checkpoints (one is always written at the end)."""
    checkpoint_minutes: float | None = None
    """Also write a checkpoint after this many minutes (none: count steps only); with a
    single process only."""
    keep_checkpoints: int = 2
    """Number of latest checkpoints to keep, in addition to the best."""
    log_every: int = 1
    """Steps between lines of metrics.jsonl."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of activations (auto: bfloat16 on GPU and TPU, float32 on CPU)."""
    read_threads: int = 4
    """Number of loader threads; does not change the batches."""
    compilation_cache: str | None = None
    """Folder of the persistent compilation cache, reused by reruns and by runs that
    compile the same programs (none: every process compiles)."""

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate", "clip_norm", "temperature")
        check_at_least(self, 0, "warmup_steps", "weight_decay", "negatives_per_query")
        check_at_least(self, 0, "eval_every", "cpu_activations")
        check_at_least(self, 1, "loss_block", "max_widths", "fsdp", "checkpoint_every")
        check_at_least(self, 1, "keep_checkpoints", "log_every", "read_threads")
        if self.compilation_cache is not None:
            local_output(self.compilation_cache, "compilation_cache")
        if self.chunk_tokens is not None:
            check_at_least(self, 1, "chunk_tokens")
        if self.checkpoint_minutes is not None:
            check_positive(self, "checkpoint_minutes")
