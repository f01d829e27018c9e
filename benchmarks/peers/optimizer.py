"""How PyTorch's side trains: mixed precision, clipping, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def autocast(device: str) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU; nothing on a CPU."""
    if device == "cpu":
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def adamw(module: nn.Module, device: str) -> Callable[[], Tensor]:
    """Clips to a norm of 1, takes AdamW's step; gives the norm before clipping."""
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=2e-5, weight_decay=0.01, fused=device != "cpu"
    )

    def update() -> Tensor:
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    return update
