"""Two-stage contextual document encoder (CDE, arXiv 2410.02525), as cdejax exports it.

Self-contained: needs torch and transformers >= 5.17 alone, builds transformers' native
BertModel, ModernBertModel or NomicBertModel by config.json, and fetches nothing.

    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    context = model.first_stage_model(**tokens_of_corpus_documents)
    embeddings = model.second_stage_model(**tokens, dataset_embeddings=context)

Weights keep the published names (`first_stage_model.embedder.…`,
`second_stage_model.backbone.…`); they are mapped to the native classes' names on load.
"""

import copy
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils.hub import cached_file

from .pooling_cdejax import after_instruction, masks, pool, text_positions
from .weights_cdejax import native_state, published_state

WEIGHTS = "model.safetensors"
_ENCODERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertConfig, BertModel, {"add_pooling_layer": False}),
    "modernbert": (ModernBertConfig, ModernBertModel, {}),
    "nomic_bert": (NomicBertConfig, NomicBertModel, {"add_pooling_layer": False}),
}
_REQUIRED = (
    "backbone_config",
    "context_rotary",
    "first_stage_residual",
    "hidden_size",
    "output_residual",
    "pooling_strategy",
    "soft_tokens",
    "token_type_readd",
    "transductive_corpus_size",
)
HUB_OPTIONS = {
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
}
_IGNORED_OPTIONS = {
    "_from_auto",
    "adapter_kwargs",
    "code_revision",
    "trust_remote_code",
}


class CdejaxConfig(PretrainedConfig):
    """config.json: the published keys, `backbone_config` and the forward's switches."""

    model_type = "cdejax"


def _encoder(config: CdejaxConfig, layers: int | None) -> Any:
    """The native encoder, from the configuration alone; nothing is fetched."""
    settings = copy.deepcopy(config.backbone_config)
    kind = settings.get("model_type")
    if kind not in _ENCODERS:
        raise ValueError(
            f"config.json: backbone_config.model_type is {kind!r}; "
            f"this file knows {', '.join(_ENCODERS)}."
        )
    config_class, model_class, options = _ENCODERS[kind]
    if layers is not None:
        settings["num_hidden_layers"] = layers
        if "layer_types" in settings:
            settings["layer_types"] = settings["layer_types"][:layers]
    settings["attn_implementation"] = config._attn_implementation
    return model_class(config_class.from_dict(settings), **options)


def _head(head: nn.Sequential, pooled: Tensor, residual: bool) -> Tensor:
    output = head(pooled.to(next(head.parameters()).dtype)).float()
    return output + pooled if residual else output


class FirstStage(nn.Module):
    """M1: mean-pooled encoder and MLP; embeds the documents of the context."""

    def __init__(self, config: CdejaxConfig):
        super().__init__()
        size = config.hidden_size
        layers = getattr(config, "limit_layers_first_stage", None)
        self.embedder = _encoder(config, layers)
        self.mlp = nn.Sequential(
            nn.Linear(size, size), nn.GELU(), nn.Linear(size, size)
        )
        self.pooling = config.pooling_strategy
        self.residual = bool(config.first_stage_residual)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> Tensor:
        """Embeds [batch, length] tokens as [batch, hidden], float32, not normalised."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = text_positions(mask)
        hidden = self.embedder(
            input_ids=input_ids,
            attention_mask=masks(self.embedder, mask, positions),
            position_ids=positions,
        ).last_hidden_state
        return _head(self.mlp, pool(hidden, mask, self.pooling), self.residual)


class SecondStage(nn.Module):
    """M2: the text read together with context vectors and learned soft tokens."""

    def __init__(self, config: CdejaxConfig):
        super().__init__()
        size, soft = config.hidden_size, config.soft_tokens
        self.backbone = _encoder(config, getattr(config, "limit_layers", None))
        self.prompt_projection = nn.Sequential(
            nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size * soft)
        )
        self.output_projection = nn.Sequential(
            nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)
        )
        null = nn.Parameter(torch.zeros(size))
        known = getattr(config, "null_embedding", True)
        self.sequence_dropout_null_embedding = null if known else None
        self.size, self.context_size, self.soft_tokens = (
            size,
            config.transductive_corpus_size,
            soft,
        )
        self.pooling = config.pooling_strategy
        self.residual = bool(config.output_residual)
        self.readd = bool(config.token_type_readd)
        self.rotary = config.context_rotary == "sequence"
        self.norm_twice = bool(getattr(config, "text_norm_twice", False))
        self.instruction_end = getattr(config, "pool_instruction_end_id", None)
        self.learned_positions = config.backbone_config["model_type"] == "bert"
        if self.norm_twice and self.learned_positions:
            raise ValueError("config.json: text_norm_twice is not for BERT.")

    @property
    def like(self) -> Tensor:
        """A tensor of the weights' type, on their device."""
        bias = self.output_projection[0].bias
        assert isinstance(bias, Tensor)
        return bias

    def _context(self, embeddings: Tensor, batch: int) -> Tensor:
        """Context as [batch, c, hidden]; an empty one becomes C null vectors."""
        null, like = self.sequence_dropout_null_embedding, self.like
        if embeddings is None:
            embeddings = like.new_zeros((0, self.size))
        given = isinstance(embeddings, Tensor)
        context = embeddings if given else torch.tensor(embeddings)
        context = context.to(like.device, like.dtype)
        if context.ndim not in (2, 3) or context.shape[-1] != self.size:
            raise ValueError(
                f"dataset_embeddings has shape {tuple(context.shape)}; "
                f"[context, {self.size}] or [batch, context, {self.size}] is needed."
            )
        if context.shape[-2] > self.context_size:
            raise ValueError(
                f"dataset_embeddings holds {context.shape[-2]} vectors, but the model "
                f"was trained with {self.context_size}: give a random sample of them."
            )
        if context.shape[-2] == 0:
            if null is None:
                raise ValueError(
                    "the model was trained without a null vector: "
                    "dataset_embeddings must hold one vector or more."
                )
            context = null.expand(self.context_size, -1)
        return context.expand(batch, -1, -1)

    def _added(self) -> Tensor:
        """What the native embedding layer adds to every row at position 0."""
        table = self.backbone.embeddings
        if not hasattr(table, "token_type_embeddings"):
            return torch.zeros_like(self.like)
        added = table.token_type_embeddings.weight[0]
        if self.learned_positions:
            added = added + table.position_embeddings.weight[0]
        return added

    def soft_rows(self) -> Tensor:
        """The soft tokens, [soft, hidden]."""
        ones = self.like.new_ones(self.size)
        return self.prompt_projection(ones).view(self.soft_tokens, self.size)

    def _rows(self, context: Tensor, input_ids: Tensor) -> Tensor:
        """Rows before the embedding norm, less what the native class adds itself.

        Text has its token-type row once, context and soft tokens have none; with
        `token_type_readd` (the published v1 code) each has it once more.
        """
        soft = self.soft_rows().expand(context.shape[0], -1, -1)
        raw = torch.cat((context, soft), dim=1)
        text = self.backbone.get_input_embeddings()(input_ids)
        if self.norm_twice:
            table, added = self.backbone.embeddings, self._added()
            norm = table.norm if hasattr(table, "norm") else table.LayerNorm
            text = norm(text + added) - added
        if self.readd:
            text = text + self.backbone.embeddings.token_type_embeddings.weight[0]
        else:
            raw = raw - self._added()
        return torch.cat((raw, text), dim=1)

    def _position_ids(self, context: Tensor, mask: Tensor) -> Tensor:
        """Positions: those of a full context whatever the number of vectors given."""
        batch, count = context.shape[:2]
        text = text_positions(mask)
        if self.learned_positions:
            front = text.new_zeros(count + self.soft_tokens)
        else:
            start = self.context_size
            places = torch.arange(count, device=mask.device)
            soft = torch.arange(self.soft_tokens, device=mask.device) + start
            front = torch.cat((places if self.rotary else places * 0, soft))
            text = text + start + self.soft_tokens
        return torch.cat((front.expand(batch, -1), text), dim=1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        dataset_embeddings: Any = None,
        context_mask: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Embeds [batch, length] tokens as [batch, hidden], float32, not normalised.

        Args:
          input_ids: tokens, [batch, length].
          attention_mask: 1 for tokens, 0 for padding, [batch, length].
          dataset_embeddings: first-stage vectors of corpus documents, [c, hidden] or
            [batch, c, hidden], c at most the trained size; without any, null vectors.
          context_mask: 0 where a context vector is to be ignored, [c] or [batch, c].
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        context = self._context(dataset_embeddings, input_ids.shape[0])
        front = mask.new_ones((mask.shape[0], context.shape[1] + self.soft_tokens))
        if context_mask is not None:
            front[:, : context.shape[1]] = torch.as_tensor(context_mask).to(front)
        positions = self._position_ids(context, mask)
        whole = torch.cat((front, mask), dim=1)
        hidden = self.backbone(
            inputs_embeds=self._rows(context, input_ids),
            attention_mask=masks(self.backbone, whole, positions),
            position_ids=positions,
        ).last_hidden_state
        pooled = pool(
            hidden[:, front.shape[1] :],
            after_instruction(input_ids, mask, self.instruction_end),
            self.pooling,
        )
        return _head(self.output_projection, pooled, self.residual)


class CdejaxModel(PreTrainedModel):
    """Both stages; without `dataset_embeddings` the first, with them the second."""

    config_class = CdejaxConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: CdejaxConfig):
        super().__init__(config)
        missing = [key for key in _REQUIRED if not hasattr(config, key)]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}.")
        self.add_stages(config)
        self.post_init()

    def add_stages(self, config: CdejaxConfig) -> None:
        """Makes the parts that have weights."""
        self.first_stage_model = FirstStage(config)
        self.second_stage_model = SecondStage(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        dataset_embeddings: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """Embeds [batch, length] tokens as [batch, hidden], float32, not normalised."""
        if dataset_embeddings is None:
            return self.first_stage_model(input_ids, attention_mask)
        return self.second_stage_model(
            input_ids, attention_mask, dataset_embeddings, **kwargs
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *args: Any,
        config: CdejaxConfig | None = None,
        dtype: Any = None,
        torch_dtype: Any = None,
        **kwargs: Any,
    ) -> "CdejaxModel":
        """Builds the native classes from the configuration and fills them strictly.

        Raises:
          RuntimeError: names or shapes of the weights do not fit; all are listed.
          ValueError: an option is given that this loader does not have.
        """
        hub = {key: kwargs.pop(key) for key in HUB_OPTIONS & kwargs.keys()}
        attention = kwargs.pop("attn_implementation", None)
        unknown = {k for k, v in kwargs.items() if v is not None} - _IGNORED_OPTIONS
        if args or unknown:
            raise ValueError(f"Unsupported options: {args or sorted(unknown)}.")
        if config is None:
            kind = cast(type[CdejaxConfig], cls.config_class)
            config = kind.from_pretrained(pretrained_model_name_or_path, **hub)
        if attention is not None:
            config._attn_implementation = attention
        model = cls(config)
        weights = cached_file(str(pretrained_model_name_or_path), WEIGHTS, **hub)
        kind = config.backbone_config["model_type"]
        model.load_state_dict(native_state(load_file(str(weights)), kind))
        dtype = dtype if dtype is not None else torch_dtype
        if dtype not in (None, "auto"):
            model = model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        return model.eval()

    def save_pretrained(self, save_directory: str | Path, **_: Any) -> None:
        """Writes config.json, the weights under their published names and this code."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(folder)
        for file in Path(__file__).parent.glob("*_cdejax*.py"):
            if file.parent.resolve() != folder.resolve():
                shutil.copy(file, folder)
        kind = self.config.backbone_config["model_type"]
        tensors = published_state(self.state_dict(), kind)
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
