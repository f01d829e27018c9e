"""Names of a contextual encoder's weights: as published, and in transformers' classes.

Only NomicBERT is published under other names than transformers' own.
"""

import torch
from torch import Tensor

# Published name, name in transformers' NomicBertModel.
_NAMES = (
    (".encoder.layers.", ".layers."),
    (".emb_ln.", ".embeddings.LayerNorm."),
    (".attn.out_proj.", ".self_attn.o_proj."),
    (".mlp.fc11.", ".mlp.up_proj."),
    (".mlp.fc12.", ".mlp.gate_proj."),
    (".mlp.fc2.", ".mlp.down_proj."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
)
_FUSED, _SPLIT = ".attn.Wqkv.", ".self_attn.{}_proj."


def native_state(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Published names to the native classes' names; fused q, k, v are split."""
    if kind != "nomic_bert":
        return dict(tensors)
    state = {}
    for name, tensor in tensors.items():
        for published, native in _NAMES:
            name = name.replace(published, native)
        if _FUSED in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                state[name.replace(_FUSED, _SPLIT.format(part))] = piece
        else:
            state[name] = tensor
    return state


def published_state(state: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The inverse of `native_state`."""
    if kind != "nomic_bert":
        return dict(state)
    tensors = {}
    for name, tensor in state.items():
        if _SPLIT.format("q") in name:
            parts = [state[name.replace("q_proj", f"{p}_proj")] for p in "qkv"]
            name, tensor = name.replace(_SPLIT.format("q"), _FUSED), torch.cat(parts)
        elif _SPLIT.format("k") in name or _SPLIT.format("v") in name:
            continue
        for published, native in _NAMES:
            # The heads' names hold no layer, embedder or backbone.
            name = name.replace(native, published)
        tensors[name] = tensor
    return tensors
