"""torch models of transformers as oracles, with weights that hide no fault.

Matrices N(0, 0.02), norm weights 1 + N(0, 0.1), all biases N(0, 0.1): library defaults
(zero biases, unit norms) would hide faults in both. Tables of relative biases N(0, 1):
less would not change scores enough to show a wrong bucket. Word embeddings are N(0,
0.02) also where no norm follows them (T5, Qwen3): larger ones would drown what layers
add, and so their faults.
"""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from cdejax.models import BiEncoder, from_pretrained
from cdejax.models.encoder import copy_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 96,
}
TOLERANCE = 2e-5  # largest difference on real tokens, float32


def draw(model, seed=0):
    """Draws all parameters of a torch model as described above."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters():
            noise = torch.randn(param.shape, generator=generator)
            if name.lower().endswith("norm.weight"):
                param.copy_(1 + 0.1 * noise)
            elif "relative_attention_bias" in name:
                param.copy_(noise)
            else:
                param.copy_((0.1 if name.endswith("bias") else 0.02) * noise)
    return model.float().eval()


def bert(seed=0, **sizes):
    config = transformers.BertConfig(**{**SIZES, **sizes})
    return draw(transformers.BertModel(config, add_pooling_layer=False), seed)


def nomic_bert(seed=0, **sizes):
    config = transformers.NomicBertConfig(**{**SIZES, **sizes})
    return draw(transformers.NomicBertModel(config), seed)


def distilbert(seed=0, **sizes):
    named = {**SIZES, **sizes}
    named["hidden_dim"] = named.pop("intermediate_size")
    return draw(
        transformers.DistilBertModel(transformers.DistilBertConfig(**named)), seed
    )


def roberta(seed=0, **sizes):
    config = transformers.RobertaConfig(**{**SIZES, **_ROBERTA, **sizes})
    return draw(transformers.RobertaModel(config, add_pooling_layer=False), seed)


def xlm_roberta(seed=0, **sizes):
    config = transformers.XLMRobertaConfig(**{**SIZES, **_ROBERTA, **sizes})
    return draw(transformers.XLMRobertaModel(config, add_pooling_layer=False), seed)


def mpnet(seed=0, **sizes):
    config = transformers.MPNetConfig(**{**SIZES, "layer_norm_eps": 1e-5, **sizes})
    return draw(transformers.MPNetModel(config, add_pooling_layer=False), seed)


def modernbert(seed=0, **sizes):
    """Of 2 layers the second is local, with a window of 10 tokens on either side."""
    named = {**SIZES, "local_attention": 20, "global_attn_every_n_layers": 2, **sizes}
    special = dict.fromkeys(("cls", "sep", "bos", "eos", "pad"), 0)
    named |= {f"{name}_token_id": number for name, number in special.items()}
    config = transformers.ModernBertConfig(**named)
    return draw(transformers.ModernBertModel(config), seed)


def t5(seed=0, **sizes):
    """Heads of 12: not a share of the hidden size."""
    named = {"vocab_size": 96, "d_model": 64, "num_layers": 2, "num_heads": 4}
    named |= {"d_ff": 96, "d_kv": 12, **sizes}
    return draw(transformers.T5EncoderModel(transformers.T5Config(**named)), seed)


def qwen3(seed=0, **sizes):
    """Heads of 24, and two of queries for each of keys."""
    named = {**SIZES, "num_key_value_heads": 2, "head_dim": 24, "is_causal": True}
    config = transformers.Qwen3Config(**{**named, **sizes})
    return draw(transformers.Qwen3Model(config), seed)


_ROBERTA = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
ORACLES = {
    "bert": bert,
    "distilbert": distilbert,
    "modernbert": modernbert,
    "mpnet": mpnet,
    "nomic_bert": nomic_bert,
    "qwen3": qwen3,
    "qwen3_bidirectional": functools.partial(qwen3, is_causal=False),
    "roberta": roberta,
    "t5": t5,
    "t5_gated": functools.partial(t5, feed_forward_proj="gated-gelu"),
    "xlm_roberta": xlm_roberta,
}


def sharpen(encoder):
    """A copy whose attention is far from uniform, as in trained models.

    At these sizes the weights above give nearly equal scores, to which neither order
    nor context matters much.
    """
    copy = copy_encoder(encoder)
    for layer in copy.layers:
        # T5 divides no score by sqrt(head_dim): less gives as much.
        factor = 3 if getattr(layer.attention, "scale", None) == 1 else 8
        layer.attention.qkv.kernel[...] = factor * layer.attention.qkv.kernel[...]
    return copy


def biencoder(folder, **arguments):
    model = from_pretrained(folder, **arguments)
    assert isinstance(model, BiEncoder)
    return model


def state_dict(oracle):
    """The oracle's weights as NumPy, tied ones (T5's embeddings) once."""
    tied = getattr(oracle, "_tied_weights_keys", None) or {}
    state = oracle.state_dict().items()
    return {name: value.numpy() for name, value in state if name not in tied}


def hidden(model, ids, mask):
    """The oracle's last hidden states as NumPy."""
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask).long()
        )
    return out.last_hidden_state.numpy()


def padded(lengths, width, *, side="right", seed=0, vocab=96, pad=0):
    """Random ids [rows, width] above `pad`, their mask; padding by it on one side."""
    rng = np.random.default_rng(seed)
    ids = np.full((len(lengths), width), pad, np.int64)
    mask = np.zeros((len(lengths), width), bool)
    for row, length in enumerate(lengths):
        where = slice(0, length) if side == "right" else slice(width - length, width)
        ids[row, where] = rng.integers(pad + 1, vocab, length)
        mask[row, where] = True
    return ids, mask


def normalised(vectors):
    vectors = np.asarray(vectors)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _call(graph, method, state, args, kwargs):
    return getattr(nnx.merge(graph, state), method)(*args, **kwargs)


_run = jax.jit(_call, static_argnums=(0, 1))


def run(model, *args, method="__call__", **kwargs):
    """Calls a model compiled as one: several times faster here than op by op."""
    return _run(*_split(model, method), args, kwargs)


def run_patched(model, *args, method="__call__", **kwargs):
    """`run` after code was patched: what was traced before is not used."""
    graph, method, state = _split(model, method)
    traced = jax.jit(lambda *inputs: _call(graph, method, *inputs))
    return traced(state, args, kwargs)


def _split(model, method):
    graph, state = nnx.split(model)
    return graph, method, state
