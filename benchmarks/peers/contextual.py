"""CDE's two stages in PyTorch over transformers' NomicBertModel, gradients cached.

Written for this comparison: no library has such a step. The modules are those of
cdejax's export (second stage through `inputs_embeds`, attention SDPA); texts are
sorted by length and encoded in chunks, first without gradients, then again with them
(Gao et al. 2021, arXiv 2101.06983), in both stages. Encoders run under autocast, the
loss in float32. There is no sequence dropout, which spares it some work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cdejax.export.torch.modeling_cdejax import CdejaxConfig, CdejaxModel

from .optimizer import adamw, autocast
from .texts import Padded, Step, both

NAME = "PyTorch two-stage cache"
CHUNKS = (32, 64, 128)
Encode = Callable[[Padded], Tensor]


class Ready(NamedTuple):
    """A step's chunks on the device."""

    context: list[Padded]
    texts: list[Padded]
    padding_efficiency: float


class Peer:
    """A training step whose context is the batch's own documents."""

    def __init__(
        self,
        config: dict[str, Any],
        temperature: float,
        device: str,
        weights: dict[str, Tensor] | None = None,
    ):
        settings = CdejaxConfig(**config)
        settings._attn_implementation = "sdpa"
        self.model: Any = CdejaxModel(settings).train()
        self.model.to(device)
        if weights is not None:
            self.model.load_state_dict(weights)
        self.encoders: tuple[nn.Module, ...] = (
            self.model.first_stage_model.embedder,
            self.model.second_stage_model.backbone,
        )
        self.temperature, self.device = temperature, device
        self.update = adamw(self.model, device)

    def ready(self, step: Step, chunk: int) -> Ready:
        context = step.documents.chunks(chunk, self.device)
        texts = both(step).chunks(chunk, self.device)
        masks = [padded.mask for padded in (*context, *texts)]
        real = sum(int(mask.sum()) for mask in masks)
        return Ready(context, texts, real / sum(mask.numel() for mask in masks))

    def step(self, ready: Ready) -> tuple[Tensor, Tensor]:
        """Loss before the update, and the gradients' norm."""
        context = self._embed(self._first, ready.context).requires_grad_()

        def second(padded: Padded) -> Tensor:
            with autocast(self.device):
                return self.model.second_stage_model(padded.ids, padded.mask, context)

        vectors = self._embed(second, ready.texts).requires_grad_()
        queries, documents = vectors.chunk(2)
        loss = info_nce(queries, documents, self.temperature)
        loss.backward()
        _again(second, ready.texts, vectors)
        _again(self._first, ready.context, context)
        return loss.detach(), self.update()

    def _first(self, padded: Padded) -> Tensor:
        with autocast(self.device):
            return self.model.first_stage_model(padded.ids, padded.mask)

    @torch.no_grad()
    def _embed(self, encode: Encode, chunks: list[Padded]) -> Tensor:
        rows = torch.cat([padded.rows for padded in chunks])
        vectors = torch.cat([encode(padded).float() for padded in chunks])
        return torch.empty_like(vectors).index_copy_(0, rows, vectors)


def info_nce(queries: Tensor, documents: Tensor, temperature: float) -> Tensor:
    """Mean over queries of the cross-entropy against all documents."""
    normal = functional.normalize(queries), functional.normalize(documents)
    scores = normal[0] @ normal[1].T / temperature
    own = torch.arange(len(scores), device=scores.device)
    return functional.cross_entropy(scores, own)


def _again(encode: Encode, chunks: list[Padded], vectors: Tensor) -> None:
    """Encodes once more, with gradients, and passes those of the vectors on."""
    assert vectors.grad is not None
    for padded in chunks:
        encode(padded).float().backward(vectors.grad[padded.rows])
