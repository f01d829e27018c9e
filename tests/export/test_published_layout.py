"""Names, shapes and keys of a contextual export are those of cde-small-v1."""

import json

from flax import nnx
from safetensors.numpy import load_file

from cdejax.export import export_model
from cdejax.models import (
    ContextualConfig,
    ContextualEncoder,
    NomicBert,
    NomicBertConfig,
)
from cdejax.models.pretrained.weights import parameter_count, table_of

from .conftest import MAX_LENGTH, PROMPTS, small_contextual

PUBLISHED_KEYS = (
    "architecture", "architectures", "attn_implementation", "auto_map",
    "autoregressive_backbone", "biencoder_pooling_strategy", "cache_dir",
    "config_name", "dataset_backbone", "disable_dropout",
    "disable_transductive_rotary_embedding", "embedder", "embedder_rerank",
    "embedding_output_dim", "limit_layers", "limit_layers_first_stage", "logit_scale",
    "max_seq_length", "model_revision", "pool_ignore_contextual_tokens",
    "pool_ignore_instruction_tokens", "pooling_strategy", "tokenizer_name",
    "torch_dtype", "transductive_corpus_size", "transductive_sequence_dropout_prob",
    "transductive_tie_token_embeddings", "transductive_tokens_per_document",
)  # fmt: skip
OUR_KEYS = (
    "backbone_config", "context_rotary", "first_stage_residual", "hidden_size",
    "output_residual", "soft_tokens", "token_type_readd",
)  # fmt: skip


def published_names() -> dict[str, tuple[int, ...]]:
    """Names and shapes of cde-small-v1, with the null vector that we always have."""
    square, bias = (768, 768), (768,)
    encoder = {
        "embeddings.word_embeddings.weight": (30528, 768),
        "embeddings.token_type_embeddings.weight": (2, 768),
        "emb_ln.weight": bias,
        "emb_ln.bias": bias,
    }
    for i in range(12):
        layer = f"encoder.layers.{i}"
        encoder |= {
            f"{layer}.attn.Wqkv.weight": (2304, 768),
            f"{layer}.attn.out_proj.weight": square,
            f"{layer}.mlp.fc11.weight": (3072, 768),
            f"{layer}.mlp.fc12.weight": (3072, 768),
            f"{layer}.mlp.fc2.weight": (768, 3072),
        }
        norms = (f"{layer}.{norm}.{p}" for norm in ("norm1", "norm2")
                 for p in ("weight", "bias"))  # fmt: skip
        encoder |= dict.fromkeys(norms, bias)
    names = {}
    for stage in ("first_stage_model.embedder", "second_stage_model.backbone"):
        names |= {f"{stage}.{name}": shape for name, shape in encoder.items()}
    heads = {
        "first_stage_model.mlp": 768,
        "second_stage_model.prompt_projection": 6144,
        "second_stage_model.output_projection": 768,
    }
    for head, out in heads.items():
        names |= {f"{head}.0.weight": square, f"{head}.0.bias": bias}
        names |= {f"{head}.2.weight": (out, 768), f"{head}.2.bias": (out,)}
    return names | {"second_stage_model.sequence_dropout_null_embedding": bias}


def test_published_layout_by_name_and_shape():
    def build():
        rngs = nnx.Rngs(0)
        first, second = (NomicBert(NomicBertConfig(), rngs) for _ in range(2))
        return ContextualEncoder(ContextualConfig(), first, second, rngs)

    model = nnx.eval_shape(build)
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    shapes = {".".join(map(str, path)): param.get_value().shape for path, param in flat}
    ours = {
        name: shape
        for entry in table_of(model)
        for name, shape in zip(
            entry.names, entry.shapes(shapes[entry.path]), strict=True
        )
    }
    assert ours == published_names()
    assert parameter_count(build) == 281_141_760


def test_published_keys_of_config(minilm, tmp_path):
    settings = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    model = small_contextual("nomic_bert")
    folder = export_model(model, minilm, tmp_path / "model", **settings)
    config = json.loads((folder / "config.json").read_text())
    assert not {*PUBLISHED_KEYS, *OUR_KEYS} - set(config)
    names = set(load_file(folder / "model.safetensors"))
    small = {n for n in published_names() if ".layers." not in n}
    assert small == {n for n in names if ".layers." not in n}
