"""Positions, attention masks and pooling of a contextual encoder."""

from typing import Any

import torch
from torch import Tensor, nn


def text_positions(mask: Tensor) -> Tensor:
    """Positions counted from each row's first real token; 0 before it."""
    steps = torch.arange(mask.shape[1], device=mask.device)
    return (steps - mask.int().argmax(1, keepdim=True)).clamp(min=0)


def masks(encoder: nn.Module, mask: Tensor, positions: Tensor) -> Any:
    """The mask, or for local attention one of each kind, by distance of positions."""
    window = getattr(encoder.config, "local_attention", None)
    if window is None:
        return mask
    keep = mask.bool()[:, None, None, :]
    distance = positions[:, None, :, None] - positions[:, None, None, :]
    allowed = {
        "full_attention": keep.expand(-1, -1, mask.shape[1], -1),
        "sliding_attention": keep & (distance.abs() <= window // 2),
    }
    dtype = next(encoder.parameters()).dtype
    low = torch.finfo(dtype).min  # finite: rows that read nothing stay numbers
    return {
        kind: torch.zeros(cells.shape, dtype=dtype, device=mask.device).masked_fill(
            ~cells, low
        )
        for kind, cells in allowed.items()
    }


def after_instruction(ids: Tensor, mask: Tensor, end: int | None) -> Tensor:
    """The mask without what stands up to the first token `end`, but a row's first."""
    if end is None:
        return mask
    ends = (ids == end) & mask.bool() & (mask.cumsum(1) > 1)
    seen = ends.cumsum(1)
    after = (seen > 0) & ~(ends & (seen == 1))
    return mask * (after | ~ends.any(1, keepdim=True))


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One float32 vector per row: mean of the real tokens, their first or last one."""
    if pooling == "mean":
        weights = mask.unsqueeze(-1).float()
        total = (hidden.float() * weights).sum(1)
        return total / weights.sum(1).clamp(min=1.0)
    real = mask.int()
    last = mask.shape[1] - 1 - real.flip(1).argmax(1)
    index = real.argmax(1) if pooling == "cls" else last
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), index].float()
