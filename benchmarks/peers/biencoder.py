"""sentence-transformers' CachedMultipleNegativesRankingLoss over BERT.

Its Trainer's way: float32 weights, the model's forward pass under autocast, as
accelerate wraps it, scores in float32, gradients clipped, fused AdamW. Pairs of a batch
are sorted by their documents' lengths; mini-batches lose the padding that all their
rows share. Features are handed in, already on the device: no tokenizer takes part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from .optimizer import adamw, autocast
from .texts import Padded, Step

NAME = "sentence-transformers"
CHUNKS = (128, 256, 512)
Features = dict[str, Tensor]


class Ready(NamedTuple):
    """A step's features on the device."""

    features: list[Features]
    padding_efficiency: float


class _Bert(nn.Module):
    """First module of a SentenceTransformer: token ids to token embeddings."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        settings = {**config, "attn_implementation": "sdpa"}
        self.bert = BertModel(BertConfig.from_dict(settings), add_pooling_layer=False)

    def forward(self, features: Features) -> Features:
        found = self.bert(
            input_ids=features["input_ids"], attention_mask=features["attention_mask"]
        )
        return {**features, "token_embeddings": found.last_hidden_state}


class Peer:
    """A training step of mini-batches of a size that may be set at any time."""

    def __init__(
        self,
        config: dict[str, Any],
        temperature: float,
        device: str,
        weights: dict[str, Tensor] | None = None,
    ):
        first = _Bert(config)
        if weights is not None:
            first.bert.load_state_dict(weights)
        pooling = Pooling(config["hidden_size"], "mean")
        self.encoders: tuple[nn.Module, ...] = (first.bert,)
        model = SentenceTransformer(modules=[first, pooling], device=device).train()
        model.forward = autocast_forward(model, device)  # type: ignore[method-assign]
        self.model, self.device = model, device
        self.loss = CachedMultipleNegativesRankingLoss(model, scale=1 / temperature)
        self.update = adamw(model, device)

    def ready(self, step: Step, chunk: int) -> Ready:
        self.loss.mini_batch_size = chunk
        order = np.argsort(-step.documents.lengths, kind="stable")
        sides = (step.queries, step.documents)
        padded = [side.padded(order, self.device) for side in sides]
        real = sum(side.lengths.sum() for side in sides)
        computed = sum(_trimmed(side.lengths[order], chunk).sum() for side in sides)
        return Ready([_features(side) for side in padded], float(real / computed))

    def step(self, ready: Ready) -> tuple[Tensor, Tensor]:
        """Loss before the update, and the gradients' norm."""
        loss = self.loss([dict(side) for side in ready.features], torch.zeros(0))
        loss.backward()
        return loss.detach(), self.update()


def autocast_forward(model: nn.Module, device: str) -> Any:
    """The forward pass under autocast; its outputs are float32, being pooled so."""
    forward = model.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        with autocast(device):
            return forward(*args, **kwargs)

    return call


def _features(padded: Padded) -> Features:
    return {"input_ids": padded.ids, "attention_mask": padded.mask}


def _trimmed(lengths: np.ndarray, chunk: int) -> np.ndarray:
    """Width of each row, that of its mini-batch's longest."""
    parts = [lengths[i : i + chunk] for i in range(0, len(lengths), chunk)]
    return np.concatenate([np.full(len(part), part.max()) for part in parts])
