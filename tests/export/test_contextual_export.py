"""A contextual encoder leaves with torch code that computes what ours computes."""

import functools
import json
import warnings
from typing import Any

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import cdejax.embedding.load
from cdejax.export import export_model
from cdejax.models import BiEncoder, ContextualEncoder
from cdejax.models.context import Context
from cdejax.models.pretrained.load import from_pretrained
from tests.models.oracles import run

from .conftest import (
    CONTEXT,
    MAX_LENGTH,
    PROMPTS,
    cosines,
    small_contextual,
)

COLON = 1024
MODELS = {
    "bert": ("bert", {"first_stage_residual": True}),
    "nomic_bert": ("nomic_bert", {"first_stage_residual": True}),
    "bert-last": ("bert", {"pooling": "last", "soft_tokens": 5}),
    "nomic_bert-cls": ("nomic_bert", {"pooling": "cls", "output_residual": False}),
    "nomic_bert-v1-hub": (
        "nomic_bert",
        {"context_rotary": "sequence", "token_type_readd": True},
    ),
    "modernbert": ("modernbert", {}),
    "modernbert-v2": (
        "modernbert",
        {
            "context_rotary": "sequence",
            "text_norm_twice": True,
            "pool_instruction_end_id": COLON,
        },
    ),
}
first_stage = functools.partial(run, method="first_stage")
second_stage = functools.partial(run, method="second_stage")
CONTEXTS = {"full": CONTEXT, "fewer": 5, "one": 1, "null": 0}


def export(model, minilm, folder):
    return export_model(
        model, minilm, folder, prompts=PROMPTS, max_length=MAX_LENGTH, metadata={}
    )


def same(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert cosines(ours, theirs).min() >= 0.99999
    np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=0)


@pytest.fixture(scope="module", params=MODELS)
def exported(request, minilm, tmp_path_factory):
    kind, settings = MODELS[request.param]
    model = small_contextual(kind, **settings)
    folder = tmp_path_factory.mktemp("contextual") / request.param
    return model, export(model, minilm, folder)


@pytest.fixture(scope="module")
def theirs(exported):
    """The export as transformers loads it."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(exported[1], trust_remote_code=True)

    def call(stage, ids, mask, **kwargs):
        with torch.inference_mode():
            inputs = torch.tensor(ids).long(), torch.tensor(mask).long()
            return getattr(model, stage)(*inputs, **kwargs).numpy()

    return call


@pytest.fixture(scope="module")
def context(exported, texts, tokens):
    model, folder = exported
    sample = texts[10 : 10 + CONTEXT]
    return np.asarray(first_stage(model, *tokens(folder, sample, PROMPTS["document"])))


@pytest.mark.parametrize("left", [False, True])
def test_first_stage(exported, theirs, texts, tokens, left):
    model, folder = exported
    ids, mask = tokens(folder, texts, left=left)
    same(first_stage(model, ids, mask), theirs("first_stage_model", ids, mask))


@pytest.mark.parametrize("size", CONTEXTS.values(), ids=CONTEXTS)
def test_second_stage(exported, theirs, texts, tokens, context, size):
    model, folder = exported
    ids, mask = tokens(folder, texts)
    ours = second_stage(model, ids, mask, context[:size])
    given: dict[str, Any] = {"dataset_embeddings": context[:size]}
    same(ours, theirs("second_stage_model", ids, mask, **given))


def test_second_stage_masked_and_per_text_contexts(
    exported, theirs, texts, tokens, context
):
    model, folder = exported
    ids, mask = tokens(folder, texts[7:20], left=True)
    rng = np.random.default_rng(0)
    contexts = np.stack([rng.permutation(context)[:7] for _ in ids])
    keep = rng.random(contexts.shape[:2]) < 0.6
    keep[:, 0] = True
    ours = second_stage(model, ids, mask, contexts, keep)
    given: dict[str, Any] = {"dataset_embeddings": contexts, "context_mask": keep}
    same(ours, theirs("second_stage_model", ids, mask, **given))


def test_sentence_transformers(exported, texts, tokens, context):
    from sentence_transformers import SentenceTransformer

    model, folder = exported
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert theirs.max_seq_length == MAX_LENGTH
    assert theirs.get_embedding_dimension() == model.dim
    sample = texts[10 : 10 + CONTEXT]
    first = theirs.encode(sample, prompt_name="document")
    same(context, first)
    encode = {"query": theirs.encode_query, "document": theirs.encode_document}
    for side, prompt in PROMPTS.items():
        ours = second_stage(model, *tokens(folder, texts, prompt), context)
        same(ours, encode[side](texts, dataset_embeddings=first, batch_size=16))


def test_a_forgotten_context_is_warned_of_once(exported, texts):
    from sentence_transformers import SentenceTransformer

    _, folder = exported
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "encode_")
        context = theirs.encode(texts[:CONTEXT], prompt_name="document")
        theirs.encode_document(texts[:3], dataset_embeddings=context)
    with pytest.warns(UserWarning, match="encode_document without dataset_embeddings"):
        theirs.encode_document(texts[:3])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "encode_")
        theirs.encode_query(texts[:3])


def test_read_back(exported, texts, tokens, context):
    model, folder = exported
    ids, mask = tokens(folder, texts)
    again = from_pretrained(folder)
    assert isinstance(again, ContextualEncoder)
    pairs = (
        (first_stage(again, ids, mask), first_stage(model, ids, mask)),
        (
            second_stage(again, ids, mask, context),
            second_stage(model, ids, mask, context),
        ),
    )
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)


def test_saved_by_sentence_transformers_and_read_by_us(
    exported, tmp_path, texts, tokens
):
    """Fine-tuning in torch keeps the published names."""
    from sentence_transformers import SentenceTransformer

    model, folder = exported
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    theirs.save(str(tmp_path / "saved"))
    ids, mask = tokens(folder, texts)
    again = from_pretrained(tmp_path / "saved")
    assert isinstance(again, ContextualEncoder)
    got, expected = first_stage(again, ids, mask), first_stage(model, ids, mask)
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)


def test_round_trips_through_both_libraries(exported, minilm, tmp_path, texts):
    """Ours → theirs → ours, and theirs → ours → theirs, with the same vectors."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    def theirs(folder):
        return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")

    _, folder = exported
    few = texts[:30]
    embedder = cdejax.embedding.load.load(folder)
    vectors = embedder.context(few).vectors
    # one text a device: fewer shapes to compile
    expected = embedder.encode(few, "query", embedder.context(few), 1)
    settings: dict[str, Any] = {"normalize_embeddings": True}
    theirs(folder).save_pretrained(str(tmp_path / "theirs"))
    ours = cdejax.embedding.load.load(tmp_path / "theirs")
    same(expected, ours.encode(few, "query", ours.context(few), 1))
    saved = theirs(tmp_path / "theirs")
    assert saved.prompts == PROMPTS
    assert saved.max_seq_length == MAX_LENGTH
    given: dict[str, Any] = {"dataset_embeddings": vectors}
    same(expected, saved.encode_query(few, **given, **settings))
    export_model(
        ours.model,
        tmp_path / "theirs",
        tmp_path / "ours",
        prompts=ours.prompts,
        max_length=ours.max_length,
        context_length=ours.context_length,
    )
    last = theirs(tmp_path / "ours")
    same(expected, last.encode_query(few, **given, **settings))
    AutoModel.from_pretrained(folder, trust_remote_code=True).save_pretrained(
        tmp_path / "auto"
    )
    AutoModel.from_pretrained(tmp_path / "auto", trust_remote_code=True)


def test_real_weights(minilm, tmp_path, texts, tokens):
    from sentence_transformers import SentenceTransformer

    start = from_pretrained(minilm, layers=3)
    assert isinstance(start, BiEncoder)
    model = ContextualEncoder.from_encoder(
        start.encoder, nnx.Rngs(0), context_size=CONTEXT
    )
    model.output_projection.last.kernel[...] += 0.01
    folder = export(model, minilm, tmp_path / "model")
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    sample = texts[10 : 10 + CONTEXT]
    first = theirs.encode(sample, prompt_name="document")
    context = first_stage(model, *tokens(folder, sample, PROMPTS["document"]))
    same(context, first)
    ids, mask = tokens(folder, texts, PROMPTS["query"])
    ours = second_stage(model, ids, mask, context)
    same(ours, theirs.encode_query(texts, dataset_embeddings=first))


def test_saved_context_serves_sentence_transformers(minilm, tmp_path, texts):
    """`Embedder.context(...).save(...)`, then `dataset_embeddings` in torch."""
    from sentence_transformers import SentenceTransformer

    model = small_contextual("nomic_bert")
    folder = tmp_path / "model"
    export_model(
        model, minilm, folder, prompts=PROMPTS, max_length=MAX_LENGTH, context_length=9
    )
    embedder = cdejax.embedding.load.load(folder)
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    for size in (CONTEXT, 5, 0):
        embedder.context(texts, size=size).save(tmp_path / f"context-{size}")
        context = Context.load(tmp_path / f"context-{size}")
        given: dict[str, Any] = {"dataset_embeddings": context.vectors[context.mask]}
        got = theirs.encode_query(texts, normalize_embeddings=True, **given)
        same(embedder.encode(texts, "query", context, 1), got)
        sample = [texts[i] for i in context.ids]
        if sample:
            same(context.vectors, theirs.encode(sample, prompt_name="document"))


def test_torch_refuses_wrong_weights_and_contexts(minilm, tmp_path, tokens):
    import torch
    from transformers import AutoModel

    folder = export(small_contextual("nomic_bert"), minilm, tmp_path / "model")
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    ids = torch.ones((2, 4), dtype=torch.long)
    size = model.config.hidden_size
    with pytest.raises(ValueError, match="trained with 12"):
        model.second_stage_model(ids, None, torch.zeros(CONTEXT + 1, size))
    with pytest.raises(ValueError, match=r"shape \(3, 7\)"):
        model.second_stage_model(ids, None, torch.zeros(3, 7))
    tensors = load_file(folder / "model.safetensors")
    gone = "first_stage_model.mlp.0.weight"
    tensors["extra.weight"] = tensors.pop(gone)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RuntimeError, match=gone) as error:
        AutoModel.from_pretrained(folder, trust_remote_code=True)
    assert "extra.weight" in str(error.value)
    with pytest.raises(ValueError, match="device_map"):
        AutoModel.from_pretrained(folder, trust_remote_code=True, device_map="cpu")


def test_published_forward_pass_of_v1(minilm, tmp_path):
    """The switches of cde-small-v1's own code, against transformers' class.

    Context is rotated; the token-type row is once on context and twice on text.
    """
    import torch
    from transformers import AutoModel

    model = small_contextual("nomic_bert", output_residual=False)
    folder = export(model, minilm, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"context_rotary": "sequence", "token_type_readd": True}
    (folder / "config.json").write_text(json.dumps(config))
    second = AutoModel.from_pretrained(
        folder, trust_remote_code=True
    ).second_stage_model
    ids, context = torch.randint(1, 999, (3, 9)), torch.randn(CONTEXT, second.size)
    with torch.inference_mode():
        table = second.backbone.embeddings
        text = table.word_embeddings(ids) + table.token_type_embeddings.weight[0]
        soft = second.prompt_projection(torch.ones(second.size)).view(8, -1)
        front = torch.cat((context, soft)).expand(3, -1, -1)
        hidden = second.backbone(inputs_embeds=torch.cat((front, text), 1))[0]
        expected = second.output_projection(hidden[:, CONTEXT + 8 :].mean(1))
        got = second(ids, None, context)
    same(expected, got)
