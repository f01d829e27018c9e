"""Small random models and the texts that exports are compared on."""

import functools
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# Before transformers is imported: where it copies an export's code to.
os.environ.setdefault("HF_MODULES_CACHE", tempfile.mkdtemp(prefix="hf-modules-"))

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.data.tokenizer import Tokenizer
from cdejax.models import (
    Bert,
    BertConfig,
    BiEncoder,
    ContextualConfig,
    ContextualEncoder,
    Encoder,
    NomicBert,
    NomicBertConfig,
)
from cdejax.models.encoders.modernbert import ModernBert, ModernBertConfig

M = TypeVar("M", bound=nnx.Module)
PROMPTS = {"query": "search_query: ", "document": "search_document: "}
MAX_LENGTH = 32
CONTEXT = 12
_SIZES = {
    "vocab_size": 30528,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}


def randomised(build: Callable[[], M], seed: int = 0) -> M:
    """Matrices N(0, 0.02), norms' scales 1 + N(0, 0.1), biases and the rest N(0, 0.1).

    Library defaults (zeros and ones) would hide faults with biases and norms.
    """
    model = nnx.eval_shape(build)
    rng = np.random.default_rng(seed)

    def draw(path: tuple, shape: tuple[int, ...]) -> jax.Array:
        noise = rng.standard_normal(shape)
        scale = 0.02 if len(shape) == 2 else 0.1
        return jnp.asarray((path[-1] == "scale") + scale * noise, jnp.float32)

    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    update = [(p, v.replace(draw(p, v.get_value().shape))) for p, v in flat]
    nnx.update(model, nnx.from_flat_state(update))
    return model


def small_encoder(kind: str, layers: int = 3) -> Encoder:
    if kind == "bert":
        config = BertConfig(num_hidden_layers=layers, **_SIZES)
        return Bert(config, nnx.Rngs(0))
    sizes: dict[str, Any] = {**_SIZES, "max_position_embeddings": 128}
    if kind == "modernbert":
        sizes |= {"global_attn_every_n_layers": 2, "local_attention": 16}
        config = ModernBertConfig(num_hidden_layers=layers, pad_token_id=0, **sizes)
        return ModernBert(config, nnx.Rngs(0))
    return NomicBert(NomicBertConfig(num_hidden_layers=layers, **sizes), nnx.Rngs(0))


def small_biencoder(kind: str, **settings) -> BiEncoder:
    return randomised(
        lambda: BiEncoder(small_encoder(kind), rngs=nnx.Rngs(1), **settings)
    )


def small_contextual(kind: str, **settings) -> ContextualEncoder:
    config = ContextualConfig(context_size=CONTEXT, **settings)

    def build() -> ContextualEncoder:
        # ModernBERT's second layer is its first with a window
        few = 2 if kind == "modernbert" else 1
        first, second = small_encoder(kind, few), small_encoder(kind, few + 1)
        return ContextualEncoder(config, first, second, nnx.Rngs(1))

    return randomised(build)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """50 texts: short, empty, far too long, other scripts, odd characters."""
    rng = random.Random(0)
    words = "the of cell wing lift drag protein query index naïve Straße 東京 ½ don't"
    odd = ["", " ", "[SEP] [MASK]", "a" * 300, "😀 emoji", "tab\tand\nline", "İstanbul"]
    lengths = [rng.choice([1, 3, 9, 30, 120]) for _ in range(43)]
    return odd + [" ".join(rng.choices(words.split(), k=n)) for n in lengths]


@pytest.fixture(scope="session")
def tokens() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Ids and mask of texts by cdejax's tokenizer, from an exported folder."""
    loaded = functools.cache(Tokenizer.load)

    def tokenise(folder: Path, texts: list[str], prompt: str = "", left: bool = False):
        tokenizer = loaded(folder)
        rows, _ = tokenizer.encode([prompt + text for text in texts], MAX_LENGTH)
        length = MAX_LENGTH  # one width: compiled once
        ids = np.full((len(rows), length), tokenizer.pad_id, np.int32)
        mask = np.zeros((len(rows), length), bool)
        for i, row in enumerate(rows):
            at = slice(length - len(row), length) if left else slice(0, len(row))
            ids[i, at], mask[i, at] = row, True
        return ids, mask

    return tokenise


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (unit(np.asarray(a)) * unit(np.asarray(b))).sum(1)
