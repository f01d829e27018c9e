"""A contextual model with its context folded in, in every library, with no argument."""

import dataclasses
import json

import numpy as np
import pytest

import cdejax
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.export import export_model
from cdejax.export.baked import bake, export_baked
from cdejax.models.context import Context

from .conftest import CONTEXT, MAX_LENGTH, PROMPTS, cosines, small_contextual

KINDS = ["bert", "nomic_bert"]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def texts(texts) -> list[str]:
    return texts[:30]


def embedder_of(kind: str, minilm) -> Embedder:
    settings = {"prompts": PROMPTS, "max_length": MAX_LENGTH, "context_length": 9}
    return Embedder(small_contextual(kind), Tokenizer.load(minilm), **settings)


def same(ours, theirs):
    assert cosines(ours, theirs).min() >= 0.99999
    np.testing.assert_allclose(theirs, ours, atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module", params=KINDS)
def baked(request, minilm, texts, tmp_path_factory):
    """The unbaked embedder, its context, and the baked folder."""
    embedder = embedder_of(request.param, minilm)
    context = embedder.context(texts, seed=3, method="medoids", candidates=20)
    folder = tmp_path_factory.mktemp("baked") / request.param
    return embedder, context, export_baked(embedder, context, folder)


@pytest.fixture(scope="module")
def theirs(baked):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(baked[2]), trust_remote_code=True, device="cpu")


def test_cdejax_needs_no_context(baked, texts):
    embedder, context, folder = baked
    again = cdejax.load(folder)
    for kind in PROMPTS:
        expected = embedder.encode(texts, kind, context)
        same(expected, again.encode(texts, kind))
    assert again.baked is not None
    assert again.baked.info == context.info
    for call in (
        lambda: again.encode(texts, context=context),
        lambda: again.context(texts),
    ):
        with pytest.raises(ValueError, match=f"{context.hash} baked in and takes no"):
            call()


def test_sentence_transformers_needs_no_second_argument(baked, theirs, texts):
    embedder, context, _ = baked
    expected = {kind: embedder.encode(texts, kind, context) for kind in PROMPTS}
    same(expected["query"], theirs.encode_query(texts))
    same(expected["document"], theirs.encode_document(texts, batch_size=7))
    same(expected["query"], theirs.encode(texts, prompt_name="query"))
    same(expected["document"], theirs.encode(texts, prompt=PROMPTS["document"]))
    plain = Embedder(embedder.model, embedder.tokenizer, max_length=MAX_LENGTH)
    bare = dataclasses.replace(context, settings=None)  # made with a prompt
    same(plain.encode(texts, "document", bare), theirs.encode(texts))
    assert theirs.prompts == PROMPTS
    assert theirs.max_seq_length == MAX_LENGTH
    assert theirs.get_embedding_dimension() == embedder.dim
    with pytest.raises(ValueError, match="dataset_embeddings"):
        theirs.encode(texts[:2], dataset_embeddings=context.vectors)


def test_truncate_dim(baked, texts):
    from sentence_transformers import SentenceTransformer

    embedder, context, folder = baked
    cut = SentenceTransformer(
        str(folder), trust_remote_code=True, device="cpu", truncate_dim=16
    )
    expected = embedder.encode(texts, "query", context)[:, :16]
    got = cut.encode_query(texts)
    assert got.shape == (len(texts), 16)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


def test_automodel(baked, texts, tokens):
    import torch
    from transformers import AutoModel

    embedder, context, folder = baked
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    ids, mask = tokens(folder, texts, PROMPTS["query"], left=True)
    with torch.inference_mode():
        got = model(torch.tensor(ids).long(), torch.tensor(mask).long()).numpy()
    same(embedder.encode(texts, "query", context, normalize=False), got)
    half = AutoModel.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.bfloat16
    )
    with torch.inference_mode():
        got = half(torch.tensor(ids).long(), torch.tensor(mask).long()).numpy()
    assert cosines(embedder.encode(texts, "query", context), got).min() > 0.99


def test_folder_says_which_context_it_holds(baked, minilm, tmp_path):
    embedder, context, folder = baked
    config = json.loads((folder / "config.json").read_text())
    held = config["baked_context"]
    assert held.items() >= context.info.items()
    expected = {"hash", "texts", "size", "method", "seed", "candidates", "corpus"}
    assert expected <= set(held)
    assert (held["method"], held["candidates"], held["corpus"]) == ("medoids", 20, 30)
    assert Context.load(folder).info == context.info
    card = (folder / "README.md").read_text()
    for text in (context.hash, "- method: medoids", "trust_remote_code=True"):
        assert text in card
    settings = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    whole = export_model(embedder.model, minilm, tmp_path / "whole", **settings)
    weights = [f / "model.safetensors" for f in (folder, whole)]
    sizes = [file.stat().st_size for file in weights]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize(("kind", "size"), [("modernbert", 5), ("nomic_bert", 0)])
def test_smaller_and_null_contexts(minilm, texts, tmp_path, kind, size):
    from sentence_transformers import SentenceTransformer

    embedder = embedder_of(kind, minilm)
    context = embedder.context(texts, size=size)
    folder = export_baked(embedder, context, tmp_path / "model")
    expected = embedder.encode(texts, "query", context)
    theirs = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    same(expected, theirs.encode_query(texts))
    same(expected, cdejax.load(folder).encode(texts, "query"))


def test_masked_places_are_left_out(minilm, texts, tmp_path):
    embedder = embedder_of("bert", minilm)
    made = embedder.context(texts)
    mask = np.arange(CONTEXT) % 3 > 0
    context = Context(made.ids, made.vectors, mask, 0, made.model, made.origin)
    again = cdejax.load(export_baked(embedder, context, tmp_path / "model"))
    same(embedder.encode(texts, context=context), again.encode(texts))
    assert again.baked is not None
    assert again.baked.hash == context.compact().hash


def test_round_trips_through_both_libraries(baked, theirs, texts, tmp_path):
    """Ours → theirs → ours, and theirs → ours → theirs, with the same vectors."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    embedder, context, _ = baked
    expected = embedder.encode(texts, "query", context)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = cdejax.load(tmp_path / "theirs")
    same(expected, ours.encode(texts, "query"))
    saved = SentenceTransformer(
        str(tmp_path / "theirs"), trust_remote_code=True, device="cpu"
    )
    same(expected, saved.encode_query(texts))
    export_baked(ours, None, tmp_path / "ours")
    last = SentenceTransformer(
        str(tmp_path / "ours"), trust_remote_code=True, device="cpu"
    )
    same(expected, last.encode_query(texts))
    AutoModel.from_pretrained(
        tmp_path / "ours", trust_remote_code=True
    ).save_pretrained(tmp_path / "auto")
    AutoModel.from_pretrained(tmp_path / "auto", trust_remote_code=True)
    assert Context.load(tmp_path / "auto").info == context.info


def test_an_unbaked_folder_of_the_same_name_may_be_loaded_before(
    baked, minilm, texts, tokens, tmp_path
):
    """transformers remembers classes by folder name and configuration class."""
    import torch
    from transformers import AutoModel

    embedder, context, folder = baked
    export_model(
        embedder.model,
        minilm,
        tmp_path / "unbaked" / "auto",
        max_length=MAX_LENGTH,
        prompts=PROMPTS,
    )
    theirs = AutoModel.from_pretrained(folder, trust_remote_code=True)
    theirs.save_pretrained(tmp_path / "baked" / "auto")
    classes = [
        AutoModel.from_pretrained(tmp_path / name / "auto", trust_remote_code=True)
        for name in ("unbaked", "baked", "unbaked")
    ]
    names = ["CdejaxModel", "CdejaxBakedModel", "CdejaxModel"]
    assert [type(model).__name__ for model in classes] == names
    ids, mask = tokens(folder, texts, PROMPTS["query"], left=False)
    with torch.inference_mode():
        got = classes[1](torch.tensor(ids).long(), torch.tensor(mask).long()).numpy()
    same(embedder.encode(texts, "query", context, normalize=False), got)


def test_torch_refuses_another_context(baked, minilm, texts, tmp_path):
    import shutil

    from transformers import AutoModel

    embedder, _, folder = baked
    shutil.copytree(folder, tmp_path / "model")
    embedder.context(texts, seed=4).save(tmp_path / "other")
    shutil.copy(tmp_path / "other/context.safetensors", tmp_path / "model")
    with pytest.raises(ValueError, match=r"but config\.json says"):
        AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True)
    with pytest.raises(ValueError, match="do not belong together"):
        cdejax.load(tmp_path / "model")


def test_bake_keeps_what_the_card_was_told(minilm, texts, tmp_path):
    model = small_contextual("bert")
    whole = export_model(
        model,
        minilm,
        tmp_path / "whole",
        prompts=PROMPTS,
        max_length=MAX_LENGTH,
        metadata={"base_model": "lab/base", "scores": {"scifact": 0.5}},
    )
    context = cdejax.load(whole).context(texts)
    folder = bake(whole, context, tmp_path / "baked", metadata={"name": "lab/mine"})
    card = (folder / "README.md").read_text()
    assert "- Base model: lab/base" in card
    assert "# lab/mine" in card
    assert "Not evaluated." in card  # the scores are those of other contexts
    assert bake(whole, context, folder, metadata={"name": "lab/mine"}) == folder
    with pytest.raises(ValueError, match="export of another model"):
        bake(whole, cdejax.load(whole).context(texts, seed=1), folder)


def test_cannot_be_trained(baked):
    from cdejax.config import Config, ModelConfig
    from cdejax.training.run_model import build_model

    model = ModelConfig(kind="contextual", encoder=str(baked[2]))
    with pytest.raises(ValueError, match="baked in and cannot be trained"):
        build_model(Config(model=model))


def test_refused(minilm, texts, tmp_path, baked):
    from .conftest import small_biencoder

    embedder, context, folder = baked
    plain = Embedder(small_biencoder("bert"), Tokenizer.load(minilm))
    for source, given, message in (
        (embedder, None, "needs a Context"),
        (plain, None, "is a biencoder; there is nothing to bake"),
        (plain, context, "is a biencoder; it takes no context"),
        (cdejax.load(folder), context, "baked in and takes no other"),
    ):
        with pytest.raises(ValueError, match=message):
            export_baked(source, given, tmp_path / "model")
    with pytest.raises(ValueError, match="`export_baked` writes such a model"):
        export_model(
            cdejax.load(folder).model,
            minilm,
            tmp_path / "model",
            prompts=PROMPTS,
            max_length=MAX_LENGTH,
        )
    assert not (tmp_path / "model").exists()
