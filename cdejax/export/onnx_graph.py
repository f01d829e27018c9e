"""A folder's sentence-transformers modules as an ONNX graph.

It imports torch at the top: `cdejax.export.onnx` loads it when a graph is written.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int

from cdejax.models.checkpoints.registry import learned_positions

OPSET = 20
"""The first with Gelu as one operator, which onnxruntime runs and quantises well."""
SINGLE_FILE_BYTES = 2_000_000_000
"""Weights above this go to a file beside the graph: a protobuf ends at 2 GiB."""
INPUTS = ("input_ids", "attention_mask")
EMBEDDING = "sentence_embedding"
TOKENS = "last_hidden_state"


class TextGraph(torch.nn.Module):
    """Ids and mask to embeddings: the modules in order, whatever the padding's side.

    Args:
      modules: of sentence-transformers; each reads and adds features by name.
      learned_positions: give positions that count from each row's first real token, as
        our own encoders do; otherwise the encoder makes its own.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], learned_positions: bool):
        super().__init__()
        self.steps = torch.nn.ModuleList(modules)
        self.learned_positions = learned_positions

    def forward(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        attention_mask: Int[torch.Tensor, "batch length"],
    ) -> tuple[Float[torch.Tensor, "..."], ...]:
        """Token states where the modules give them, and the embedding."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.learned_positions:
            first = attention_mask.to(torch.int32).argmax(1, keepdim=True)
            steps = torch.arange(input_ids.shape[1], device=input_ids.device)
            features["position_ids"] = (steps[None] - first).clamp(min=0)
        for step in self.steps:
            features = step(features)
        if features.get("token_embeddings") is None:
            return (features[EMBEDDING],)
        return features["token_embeddings"], features[EMBEDDING]


def stock_graph(folder: Path) -> TextGraph:
    """A folder of stock modules, on the CPU in float32; no code of it is run.

    Raises:
      ValueError: a pooling leaves the prompt out, which a graph is not told.
    """
    from sentence_transformers import SentenceTransformer

    with _quiet():
        # eager: plain products and a softmax, and no NaN in rows without real tokens
        model = SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"attn_implementation": "eager", "dtype": torch.float32},
        )
    modules: list[Any] = list(model)
    if not all(getattr(module, "include_prompt", True) for module in modules):
        raise ValueError(
            f"{folder}: its pooling leaves the prompt out (include_prompt false), but "
            "an ONNX graph does not know which tokens are the prompt's"
        )
    learned = learned_positions(modules[0].auto_model.config.model_type)
    return TextGraph(modules, learned is not None and learned.counts_padding)


def baked_graph(folder: Path) -> TextGraph:
    """A contextual model with its context baked in; our own code, not the folder's."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    from cdejax.export.torch.modeling_cdejax_baked import CdejaxBakedModel
    from cdejax.export.torch.sentence_transformers_cdejax_baked import BakedTransformer

    with _quiet():
        model = CdejaxBakedModel.from_pretrained(
            folder, attn_implementation="eager", local_files_only=True
        )
    return TextGraph([BakedTransformer(model, tokenizer=None), Normalize()], False)


def write_graph(graph: TextGraph, file: Path) -> None:
    """Traces a graph with free batch and length, and writes it.

    Weights of more than 2 GB lie beside it in `FILE_data`.
    """
    import onnx_ir

    ids = torch.ones((2, 7), dtype=torch.int64)  # sizes 0 and 1 would be taken as fixed
    with torch.no_grad():
        names = (TOKENS, EMBEDDING)[-len(graph(ids, ids)) :]
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with _quiet():
        program = torch.onnx.export(
            graph.eval(),
            (ids, ids.clone()),
            dynamo=True,
            opset_version=OPSET,
            input_names=INPUTS,
            output_names=names,
            dynamic_shapes=dict.fromkeys(INPUTS, axes),
            verbose=False,
        )
    assert program is not None
    _check_free_sizes(program.model, file.name)
    size = sum(p.numel() * p.element_size() for p in graph.parameters())
    beside = f"{file.name}_data" if size > SINGLE_FILE_BYTES else None
    onnx_ir.save(program.model, file, external_data=beside)


def _check_free_sizes(model: Any, name: str) -> None:
    """Where tracing meets a size that must be a number, torch fixes it unasked."""
    for value in model.graph.inputs:
        if value.shape is None or any(map(value.shape.is_static, (0, 1))):
            raise ValueError(
                f"{name}: {value.name} was traced with the fixed shape {value.shape}; "
                "the model's code makes a plain number of its batch or length"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's remarks on itself from the user's screen."""
    from transformers.utils import logging as bars

    exporter = logging.getLogger("torch.onnx")
    level, shown = exporter.level, bars.is_progress_bar_enabled()
    try:
        exporter.setLevel(logging.ERROR)
        bars.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
        if shown:
            bars.enable_progress_bar()
