"""AdamW with warm-up, weight decay of matrices only, and gradient clipping."""

from __future__ import annotations

from typing import Any

import jax
import optax

from cdejax.config import TrainingConfig


def learning_rate(config: TrainingConfig, total_steps: int) -> optax.Schedule:
    """Linear warm-up to the peak, then linear or cosine decay to zero, or constant.

    Raises:
      ValueError: the warm-up is not shorter than the run.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if warmup and warmup >= total_steps:
        raise ValueError(
            f"training.warmup_steps is {warmup}, but the plan has {total_steps} steps; "
            "choose fewer or plan more epochs"
        )
    rest = total_steps - warmup
    after = {
        "linear": optax.linear_schedule(peak, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(peak, rest),
        "constant": optax.constant_schedule(peak),
    }[config.schedule]
    if not warmup:
        return after
    ramp = optax.linear_schedule(peak / warmup, peak, warmup - 1 or 1)
    return optax.join_schedules([ramp, after], [warmup])


def weight_decay_mask(params: Any) -> Any:
    """Which parameters have weight decay: matrices, but no biases or norm weights."""
    return jax.tree.map(lambda x: x.ndim >= 2, params)


def make_optimizer(
    config: TrainingConfig, total_steps: int
) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW (betas 0.9 and 0.999, eps 1e-8)."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate(config, total_steps),
            weight_decay=config.weight_decay,
            mask=weight_decay_mask,
        ),
    )
