"""Fine-tune an encoder in a plain optax loop; of cdejax only `cdejax.models` is used.

    python examples/optax_loop.py MODEL --steps 24

MODEL is a BERT-like encoder's folder with its tokenizer.json. Names of the standard
library's functions are drawn towards their docstrings. The model is split once into
its structure and its parameters; the step is a pure function of the parameters.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from shared import corpus
from tokenizers import Tokenizer

from cdejax.models import from_pretrained

BATCH, LENGTH = 16, 24


def tokenise(folder: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """Token ids and mask, [texts, LENGTH]."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    rows = tokenizer.encode_batch(texts)
    ids = np.array([row.ids for row in rows])
    return {"ids": ids, "mask": np.array([row.attention_mask for row in rows], bool)}


def main() -> None:
    """Trains and prints the mean loss of every epoch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    given = parser.parse_args()

    model: Any = from_pretrained(given.model)  # pooling and head are left behind
    graph, params = nnx.split(model.encoder)
    optimizer = optax.adamw(given.learning_rate)
    state = optimizer.init(params)

    def embed(encoder: Any, batch: dict[str, jax.Array]) -> jax.Array:
        mean = encoder(**batch).mean(axis=1, where=batch["mask"][..., None])
        return mean / jnp.linalg.norm(mean, axis=1, keepdims=True)

    def loss_of(params: Any, queries: Any, documents: Any) -> jax.Array:
        encoder = nnx.merge(graph, params)
        scores = embed(encoder, queries) @ embed(encoder, documents).T / 0.05
        own = jnp.arange(len(scores))
        return optax.softmax_cross_entropy_with_integer_labels(scores, own).mean()

    @jax.jit
    def step(params: Any, state: Any, queries: Any, documents: Any) -> tuple:
        loss, gradients = jax.value_and_grad(loss_of)(params, queries, documents)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    pairs = corpus()[: 4 * BATCH]
    names = [pair.name.replace(".", " ").replace("_", " ") for pair in pairs]
    queries = tokenise(given.model, names)
    documents = tokenise(given.model, [pair.text for pair in pairs])
    losses = []
    for number in range(given.steps):
        rows = np.arange(number * BATCH, (number + 1) * BATCH) % len(pairs)
        batch = jax.tree.map(lambda array: array[rows], (queries, documents))  # noqa: B023
        params, state, loss = step(params, state, *batch)
        losses.append(float(loss))
        if len(losses) % 4 == 0:
            print(f"step {number + 1}: loss {np.mean(losses[-4:]):.4f}")
    nnx.update(model, {"encoder": params})  # back into the model, if it is wanted whole


if __name__ == "__main__":
    main()
