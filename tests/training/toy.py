"""A small world with all that makes batches awkward.

Texts repeat, stand on both sides and among hard negatives; pairs were sampled out.
"""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cdejax.data.known_positives import KnownPositives
from cdejax.data.ragged import Ragged
from cdejax.models import (
    T5,
    Bert,
    BertConfig,
    BiEncoder,
    ContextualConfig,
    ContextualEncoder,
    ModernBert,
    ModernBertConfig,
    MPNet,
    MPNetConfig,
    NomicBert,
    NomicBertConfig,
    Qwen3,
    Qwen3Config,
    T5Config,
)
from cdejax.training.batch import BatchSettings
from cdejax.training.batch_maker import BatchMaker
from cdejax.training.shapes import find_shapes
from tests.training.oracle import Column, mean_loss, relation

VOCABULARY, HIDDEN = 64, 32
LENGTHS = (2, 5, 12)


def world(seed=0, rows=64, batch=16, epochs=2, negatives=0, max_length=24):
    """Stand-ins for the artefacts: pairs, tokens, vectors and a plan."""
    rng = np.random.default_rng(seed)
    texts = rows // 2
    table = SimpleNamespace(
        query=rng.integers(0, texts, rows).astype(np.int32),
        document=rng.integers(0, texts, rows).astype(np.int32),
        negatives=Ragged.from_rows(
            [rng.choice(texts, rng.integers(0, negatives + 1)) for _ in range(rows)]
        ),
    )
    # Every text stands in two rows, as in two domains; half of them on both sides.
    query_content = np.arange(texts) // 2
    document_content = query_content + texts // 4
    left_out = rng.integers(0, texts, (2, rows // 4))
    read = np.concatenate([[table.query, table.document], left_out], axis=1)
    names = [f"text {number}" for number in range(texts)]
    pairs = SimpleNamespace(
        train=table,
        queries=[names[i] for i in query_content],
        documents=[names[i] for i in document_content],
        query_content=query_content,
        document_content=document_content,
        known=KnownPositives.of(query_content[read[0]], document_content[read[1]]),
    )
    pairs.read = {(pairs.queries[q], pairs.documents[d]) for q, d in read.T}

    def tokens(limit):
        lengths = rng.choice([n for n in LENGTHS if n <= limit], texts)
        return Ragged.from_rows([rng.integers(1, VOCABULARY, n) for n in lengths])

    documents = tokens(max_length)
    store = SimpleNamespace(
        queries=tokens(max_length // 2), documents=documents, context=documents
    )
    vectors = SimpleNamespace(
        queries=rng.normal(size=(texts, 4)).astype(np.float32),
        documents=rng.normal(size=(texts, 4)).astype(np.float32),
    )
    order = [rng.permutation(rows).reshape(-1, batch) for _ in range(epochs)]
    order = np.concatenate(order)
    plan = SimpleNamespace(
        batch_size=batch, total_steps=len(order), rows=lambda step: order[step]
    )
    return pairs, store, plan, vectors


def make_batches(
    world, *, devices=1, tokens=64, context=0, negatives=0, packed=True
) -> BatchMaker:
    pairs, store, plan, vectors = world
    settings = BatchSettings(
        seed=3,
        devices=devices,
        chunk_tokens=tokens,
        context_size=context,
        soft_tokens=8 if context else 0,
        negatives_per_query=negatives,
        max_widths=2,
        packed=packed,
    )
    shapes = find_shapes(pairs, store, plan, settings)
    return BatchMaker(pairs, store, plan, settings, shapes, vectors)


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
OTHERS = {
    "modernbert": lambda rngs: ModernBert(
        ModernBertConfig(
            **{**SIZES, "num_hidden_layers": 2},
            global_attn_every_n_layers=2,
            local_attention=8,
        ),
        rngs,
    ),
    "mpnet": lambda rngs: MPNet(MPNetConfig(**SIZES), rngs),
    "qwen3": lambda rngs: Qwen3(
        Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16), rngs
    ),
    "t5": lambda rngs: T5(T5Config(VOCABULARY, HIDDEN, 1, 2, 48, 16), rngs),
}
"""Encoders whose attention is not BERT's: biases, windows, causality."""


def make_model(kind, context=8):
    """A small model whose every parameter matters."""
    rngs, sizes = nnx.Rngs(0), SIZES
    if kind in OTHERS:
        encoder = OTHERS[kind](rngs)
        encoder.remat = True
        model = BiEncoder(encoder, "last" if kind == "qwen3" else "mean")
    elif kind == "biencoder":
        model = BiEncoder(Bert(BertConfig(**sizes), rngs))
    else:
        first, second = (NomicBert(NomicBertConfig(**sizes), rngs) for _ in range(2))
        config = ContextualConfig(context_size=context)
        model = ContextualEncoder(config, first, second, rngs)
    graphdef, params = nnx.split(model)
    rng = np.random.default_rng(1)

    def noisy(x):
        noise = 0.02 * rng.normal(size=x.shape)
        return jnp.asarray(np.asarray(x) + noise, x.dtype)

    return graphdef, jax.tree.map(noisy, params)


def plain_loss(graphdef, params, maker, step, key, settings):
    """The loss without chunks, scans, checkpoints or devices: one text at a time."""
    rows, tokens = maker.sampler.rows(step), maker.tokens
    two_stage = isinstance(nnx.merge(graphdef, params), ContextualEncoder)
    first, second, single = _text_functions(graphdef)
    context = jnp.zeros((0, HIDDEN))
    if two_stage:
        texts = [tokens.context[int(i)] for i in rows.context]
        context = jnp.stack([first(params, text) for text in texts])

    def embed(store, numbers, side):
        if not two_stage:
            return jnp.stack([single(params, store[int(i)]) for i in numbers])
        out = []
        for row, i in enumerate(numbers):
            row_key = jax.random.fold_in(jax.random.fold_in(key, side), row)
            dropped = jax.random.bernoulli(
                row_key, settings.sequence_dropout, (len(context),)
            )
            out.append(second(params, store[int(i)], context, dropped))
        return jnp.stack(out)

    return mean_loss(
        embed(tokens.queries, rows.query, 0),
        embed(tokens.documents, rows.document, 1),
        plain_relation(maker, step, settings.relation),
        settings.objective.temperature,
    )


def plain_relation(maker, step, how):
    """The cells of a step, from its texts and from all pairs that were read."""
    rows, pairs, vectors = maker.sampler.rows(step), maker.pairs, maker.vectors
    scores = vectors.queries[rows.query] @ vectors.documents[rows.document].T
    queries = [pairs.queries[i] for i in rows.query]
    columns = [
        Column(pairs.documents[document], int(owner), j < len(queries), bool(real))
        for j, (document, owner, real) in enumerate(
            zip(rows.document, rows.owner, rows.real, strict=True)
        )
    ]
    return relation(
        queries,
        columns,
        pairs.read,
        duplicates=how.duplicates,
        score=lambda i, j: scores[i, j],
        margin=how.margin,
    )


def _text_functions(graphdef):
    """Encoders of a single text, compiled once per length."""

    def first(params, text):
        return nnx.merge(graphdef, params).first_stage(text[None])[0]

    def second(params, text, context, dropped):
        model = nnx.merge(graphdef, params)
        return model.second_stage(text[None], context=context, dropped=dropped[None])[0]

    def single(params, text):
        return nnx.merge(graphdef, params)(text[None])[0]

    return jax.jit(first), jax.jit(second), jax.jit(single)
