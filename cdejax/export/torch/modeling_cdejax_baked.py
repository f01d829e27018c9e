"""A contextual document encoder with a context folded in, as cdejax exports it.

    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    embeddings = model(**tokens)

The vectors of `context.safetensors` and the soft tokens are constants. There is no
first stage: the context cannot be changed, and no other one can be made here.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils.hub import cached_file

from .modeling_cdejax import HUB_OPTIONS, CdejaxConfig, CdejaxModel, SecondStage

CONTEXT, CONTEXT_INFO = "context.safetensors", "context.json"


def context_hash(tensors: dict[str, Tensor], model: str) -> str:
    """Hash of a context, as `cdejax.Context.hash` computes it."""
    digest = hashlib.blake2b(model.encode(), digest_size=8)
    for name in ("ids", "vectors", "mask"):
        array = tensors[name].cpu().numpy()
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class CdejaxBakedConfig(CdejaxConfig):
    """A configuration class of its own.

    Having loaded one folder, transformers takes later folders of the same name and
    configuration class for the same model class, whatever `auto_map` says there.
    """


class BakedSecondStage(SecondStage):
    """The second stage with constant context and soft tokens."""

    context: Tensor

    def __init__(self, config: CdejaxConfig):
        super().__init__(config)
        del self.prompt_projection
        self.soft_prompt = nn.Parameter(torch.zeros(self.soft_tokens, self.size))
        empty = torch.zeros(0, self.size)
        self.register_buffer("context", empty, persistent=False)

    def soft_rows(self) -> Tensor:
        """The soft tokens, [soft, hidden]."""
        return self.soft_prompt


class CdejaxBakedModel(CdejaxModel):
    """The second stage alone, reading the context of its folder."""

    config_class = CdejaxBakedConfig
    second_stage_model: BakedSecondStage

    def add_stages(self, config: CdejaxConfig) -> None:
        """Makes the parts that have weights."""
        self.second_stage_model = BakedSecondStage(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        dataset_embeddings: Any = None,
        **_: Any,
    ) -> Tensor:
        """Embeds [batch, length] tokens as [batch, hidden], float32, not normalised."""
        if dataset_embeddings is not None:
            raise ValueError(
                "this model has a context baked in and takes no dataset_embeddings: "
                "use the export that it was baked from."
            )
        second = self.second_stage_model
        return second(input_ids, attention_mask, second.context)

    def set_context(self, tensors: dict[str, Tensor]) -> None:
        """Takes `ids`, `vectors` and `mask` of a saved context.

        Raises:
          ValueError: config.json says that another context is baked in.
        """
        info = self.config.baked_context
        found = context_hash(tensors, info["model"])
        if found != info["hash"]:
            raise ValueError(
                f"{CONTEXT} holds the context {found}, but config.json says that "
                f"{info['hash']} is baked in."
            )
        self.context_tensors = tensors
        like = self.second_stage_model.like
        vectors = tensors["vectors"][tensors["mask"]]
        self.second_stage_model.context = vectors.to(like.device, like.dtype)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *args: Any, **kwargs: Any
    ) -> "CdejaxBakedModel":
        """Loads weights, as `CdejaxModel` does, and the context."""
        hub = {key: kwargs[key] for key in HUB_OPTIONS & kwargs.keys()}
        model = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        assert isinstance(model, cls)
        file = cached_file(str(pretrained_model_name_or_path), CONTEXT, **hub)
        model.set_context(load_file(str(file)))
        return model

    def save_pretrained(self, save_directory: str | Path, **_: Any) -> None:
        """Writes what `CdejaxModel` writes, and the context as it was read."""
        super().save_pretrained(save_directory)
        folder = Path(save_directory)
        save_file(self.context_tensors, folder / CONTEXT)
        info = json.dumps(self.config.baked_context, indent=2, ensure_ascii=False)
        (folder / CONTEXT_INFO).write_text(info + "\n", encoding="utf-8")
