"""Embedders run by mteb itself, on tasks over texts that are defined here."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx

import cdejax
from cdejax.data.beir import Collection
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.export.folder import export_model
from cdejax.models import Bert, BertConfig, BiEncoder, ContextualEncoder
from cdejax.retrieval.evaluate import evaluate_embedder
from tests.tiny import TOPICS

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.types import PromptType  # noqa: E402

from cdejax.retrieval.mteb import MtebEncoder  # noqa: E402

PROMPTS = {"query": "search query: ", "document": "search document: "}
BATCH = {"batch_size": 2, "show_progress_bar": False}  # few shapes to compile


def words(rng, topic, count):
    return " ".join(rng.choice(TOPICS[topic].split(), count))


def topic_rows(per_topic, seed):
    rng = np.random.default_rng(seed)
    names = list(TOPICS) * per_topic
    texts = [f"{words(rng, name, 5)} {i}" for i, name in enumerate(names)]
    return texts, [list(TOPICS).index(name) for name in names]


def collection():
    """Documents with titles; queries repeat a part of a document, some of two."""
    documents, _ = topic_rows(12, seed=0)
    queries = [" ".join(text.split()[1:4]) for text in documents[::3]]
    qrels = {f"q{i}": {f"d{3 * i}": 2, f"d{3 * i + 1}": 1} for i in range(len(queries))}
    return Collection(
        [f"d{i}" for i in range(len(documents))],
        [f"part {i} {text}" for i, text in enumerate(documents)],
        list(qrels),
        queries,
        qrels,
        {},
    )


def metadata(name, kind, score):
    return TaskMetadata(
        name=name,
        type=kind,
        main_score=score,
        description="Texts that a test made.",
        dataset={"path": "local", "revision": "1"},
        eval_langs=["eng-Latn"],
        category="t2t",
    )


def among_documents():
    """The collection, where every query is a document of its own id, too."""
    data = collection()
    return dataclasses.replace(
        data,
        document_ids=data.document_ids + data.query_ids,
        documents=data.documents + data.queries,
    )


class LocalRetrieval(AbsTaskRetrieval):
    metadata = metadata("LocalRetrieval", "Retrieval", "ndcg_at_10")
    collection = staticmethod(collection)

    def load_data(self, num_proc=None, **_):
        data = self.collection()
        parts = [text.split(" ", 2) for text in data.documents]
        corpus = {
            "id": data.document_ids,
            "title": [f"{a} {b}" for a, b, _ in parts],
            "text": [text for _, _, text in parts],
        }
        split: Any = {
            "corpus": datasets.Dataset.from_dict(corpus),
            "queries": datasets.Dataset.from_dict(
                {"id": data.query_ids, "text": data.queries}
            ),
            "relevant_docs": data.qrels,
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


class QueriesAmongDocuments(LocalRetrieval):
    """As ArguAna in mteb, whose task leaves out documents of the query's id."""

    metadata = metadata("QueriesAmongDocuments", "Retrieval", "ndcg_at_10")
    ignore_identical_ids = True
    collection = staticmethod(among_documents)


class LocalClassification(AbsTaskClassification):
    metadata = metadata("LocalClassification", "Classification", "accuracy")
    samples_per_label, n_experiments = 4, 2

    def load_data(self, num_proc=None, **_):
        self.dataset = datasets.DatasetDict(
            {
                split: datasets.Dataset.from_dict({"text": texts, "label": labels})
                for split, (texts, labels) in {
                    "train": topic_rows(10, seed=1),
                    "test": topic_rows(5, seed=2),
                }.items()
            }
        )
        self.data_loaded = True


class LocalSTS(AbsTaskSTS):
    metadata = metadata("LocalSTS", "STS", "cosine_spearman")
    min_score, max_score = 0, 5

    def load_data(self, num_proc=None, **_):
        first, _ = topic_rows(6, seed=3)
        kept = np.arange(len(first)) % 6
        second = [
            " ".join(text.split()[:count] + ["stone"] * (5 - count))
            for text, count in zip(first, kept, strict=True)
        ]
        rows = {"sentence1": first, "sentence2": second, "score": kept.tolist()}
        self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(rows)})
        self.data_loaded = True


def bert():
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    return Bert(config, nnx.Rngs(0))


@pytest.fixture(scope="module")
def contextual(minilm):
    model = ContextualEncoder.from_encoder(bert(), nnx.Rngs(1), context_size=16)
    noise = np.random.default_rng(0)  # new heads are zero: no context would matter
    state = nnx.state(model, nnx.Param)
    changed = [
        (path, leaf.replace(leaf.get_value() + noise.normal(0, 0.1, leaf.shape)))
        for path, leaf in nnx.to_flat_state(state)
    ]
    nnx.update(model, nnx.from_flat_state(changed))
    tokenizer = Tokenizer.load(minilm)
    return Embedder(model, tokenizer, prompts=PROMPTS, max_length=16, name="tiny")


@pytest.fixture(scope="module")
def loaded(minilm):
    return cdejax.load(minilm)


def run(model, tasks, cache=None):
    return mteb.evaluate(
        model, tasks, cache=cache, encode_kwargs=BATCH, show_progress_bar=False
    )


def main_scores(result):
    return {t.task_name: t.get_score() for t in result.task_results}


def test_minilm_scores_as_in_our_own_evaluation(loaded, tmp_path):
    model = MtebEncoder(loaded)
    cache = mteb.ResultCache(tmp_path)
    tasks = [LocalRetrieval(), LocalClassification(), LocalSTS()]
    scores = main_scores(run(model, tasks, cache))
    ours = evaluate_embedder(loaded, collection()).scores["nDCG@10"].mean()
    assert scores["LocalRetrieval"] == pytest.approx(ours, abs=1e-3)
    assert 0.3 < ours < 1
    assert scores["LocalClassification"] > 0.8
    assert scores["LocalSTS"] > 0.6
    assert model.contexts == {}

    read = cache.load_results(models=[model.mteb_model_meta], include_remote=False)
    (found,) = read.model_results
    assert found.model_revision == model.mteb_model_meta.revision
    assert main_scores(found) == pytest.approx(scores)
    by_name = cache.load_results(models=["cdejax/model"], include_remote=False)
    assert {t.task_name for m in by_name for t in m.task_results} == set(scores)
    (file,) = tmp_path.rglob("LocalSTS.json")
    stored = mteb.TaskResult.from_disk(file).get_score()  # mteb rounds to 6 digits
    assert stored == pytest.approx(scores["LocalSTS"], abs=1e-6)


def test_mtebs_own_rule_for_identical_ids_gives_our_figure(loaded):
    score = main_scores(run(MtebEncoder(loaded), QueriesAmongDocuments()))
    ours = evaluate_embedder(loaded, among_documents())
    assert ours.settings["own_documents"] == 12
    mean = ours.scores["nDCG@10"].mean()
    assert score["QueriesAmongDocuments"] == pytest.approx(mean, abs=1e-3)
    alone = evaluate_embedder(loaded, collection()).scores["nDCG@10"].mean()
    assert mean < alone - 0.01, "other queries are documents that distract"


def test_contextual_scores_as_in_our_own_evaluation(contextual):
    model = MtebEncoder(contextual, seed=5)
    score = main_scores(run(model, LocalRetrieval()))["LocalRetrieval"]
    ours = evaluate_embedder(contextual, collection(), seed=5)
    record = model.contexts["LocalRetrieval", "default", "test"]
    assert record == ("corpus", 36, 16, 5, ours.settings["hash"])
    assert score == pytest.approx(ours.scores["nDCG@10"].mean(), abs=1e-3)
    other = evaluate_embedder(contextual, collection(), context="null")
    assert score != pytest.approx(other.scores["nDCG@10"].mean(), abs=1e-3)


def test_contexts_come_from_the_task_itself_and_anew_for_each(contextual, monkeypatch):
    drawn = []
    context = Embedder.context
    monkeypatch.setattr(
        Embedder,
        "context",
        lambda self, texts, *args, **kwargs: (
            drawn.append(list(texts)) or context(self, texts, *args, **kwargs)
        ),
    )
    both = {"STS": "document", "Classification": "document"}
    model = MtebEncoder(contextual, prompts=both, context_size=8)
    tasks = [LocalSTS(), LocalClassification(), LocalRetrieval()]
    run(model, tasks)
    sentences, training, corpus = drawn
    assert sentences == topic_rows(6, seed=3)[0]
    assert len(training) <= 24  # 2 experiments, 4 of each of 3 labels
    assert set(training) <= set(topic_rows(10, seed=1)[0])
    assert corpus == collection().documents
    assert {place: (r.source, r.size) for place, r in model.contexts.items()} == {
        ("LocalSTS", "default", "test"): ("texts", 8),
        ("LocalClassification", "default", "train"): ("training rows", 8),
        ("LocalRetrieval", "default", "test"): ("corpus", 8),
    }
    hashes = {record.hash for record in model.contexts.values()}
    assert len(hashes) == 3
    again = MtebEncoder(contextual, prompts=both, context_size=8)
    run(again, tasks[::-1])
    assert again.contexts == model.contexts


def test_every_text_gets_the_prompt_of_its_task(contextual, monkeypatch):
    asked = []
    encode = Embedder.encode
    monkeypatch.setattr(
        Embedder,
        "encode",
        lambda self, texts, kind, *args, **kwargs: (
            asked.append(kind) or encode(self, texts, kind, *args, **kwargs)
        ),
    )
    both = {"localsts": "query", "Classification": "document"}
    model = MtebEncoder(contextual, prompts=both)
    for task in (LocalRetrieval(), LocalSTS(), LocalClassification()):
        run(model, task)
    assert asked == ["query", "document", "query", "query", "document", "document"]


class Named:
    """The part of an embedder that prompts are looked up in."""

    def __init__(self, default_prompt_name=None, **prompts):
        self.default_prompt_name = default_prompt_name
        self.name, self.prompts = "named", {"query": "", "document": "", **prompts}


def chosen(task, kind, mapping=None, **prompts):
    model: Any = object.__new__(MtebEncoder)
    model.embedder, model._mapping = Named(**prompts), mapping or {}
    return model.prompt_name(task.metadata, kind)


def test_the_closest_prompt_is_taken():
    query, document = PromptType.query, PromptType.document
    four = {**PROMPTS, "classification": "classify: ", "STS": "compare: "}
    assert chosen(LocalClassification, None, **four) == "classification"
    assert chosen(LocalSTS, None, **four) == "STS"
    assert chosen(LocalRetrieval, query, **four) == "query"
    assert chosen(LocalRetrieval, query, **four, Retrieval="find: ") == "Retrieval"
    closest = {"Retrieval": "find: ", "LocalRetrieval-document": "here: "}
    assert (
        chosen(LocalRetrieval, document, **four, **closest) == "LocalRetrieval-document"
    )
    assert chosen(LocalSTS, None, {"sts": "query"}, **four) == "query"
    assert (
        chosen(LocalSTS, None, **PROMPTS, default_prompt_name="document") == "document"
    )
    # without any prompt all goes; documents may lack one that queries have
    assert chosen(LocalSTS, None) == "document"
    assert chosen(LocalRetrieval, query) == "query"
    assert chosen(LocalRetrieval, document, query="find: ") == "document"


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_scores_are_by_the_models_similarity_function(minilm, name):
    tokenizer = Tokenizer.load(minilm)
    embedder = Embedder(BiEncoder(bert()), tokenizer, similarity_fn_name=name)
    model = MtebEncoder(embedder)
    assert model.mteb_model_meta.similarity_fn_name == name
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 5, 8)).astype(np.float32)
    expected = embedder.similarity(one, other)
    assert model.similarity(one, other).numpy() == pytest.approx(expected, abs=1e-5)
    rows = model.similarity_pairwise(one, other).numpy()
    assert rows == pytest.approx(np.diag(expected), abs=1e-5)


def test_a_model_with_prompts_does_not_run_without(contextual, tmp_path, minilm):
    with pytest.raises(ValueError, match=r"LocalSTS \(STS\).*\['document', 'query'\]"):
        run(MtebEncoder(contextual), LocalSTS())
    with pytest.raises(ValueError, match="query: named has prompts for"):
        chosen(LocalRetrieval, PromptType.query, document="text: ")
    with pytest.raises(ValueError, match="no prompt called 'clustering'"):
        MtebEncoder(contextual, prompts={"STS": "clustering"})
    folder = export_model(
        BiEncoder(bert()), minilm, tmp_path / "out", prompts=PROMPTS, max_length=16
    )
    loaded = cdejax.load(folder)
    MtebEncoder(loaded)
    loaded.prompts = dict.fromkeys(loaded.prompts, "")
    with pytest.raises(ValueError, match=r"has prompts \(document, query\)"):
        MtebEncoder(loaded)


def test_results_of_other_settings_are_not_mistaken_for_these(contextual):
    models = [
        MtebEncoder(contextual),
        MtebEncoder(contextual, seed=1),
        MtebEncoder(contextual, context_size=3),
        MtebEncoder(contextual, prompts={"STS": "query"}),
    ]
    assert len({model.mteb_model_meta.revision for model in models}) == 4
    meta = models[1].mteb_model_meta
    assert meta.revision == MtebEncoder(contextual, seed=1).mteb_model_meta.revision
    told = json.loads(json.dumps(meta.to_dict(), default=str))["loader_kwargs"]
    assert told["prompts"] == PROMPTS
    assert told["weights"] == contextual.hash
    assert (told["context_seed"], told["context_size"]) == (1, 16)


def test_queries_before_their_corpus_are_refused(contextual):
    model = MtebEncoder(contextual)
    place = {"hf_split": "test", "hf_subset": "default"}
    task = {"task_metadata": LocalRetrieval.metadata, "prompt_type": PromptType.query}
    query: Any = {**task, **place}
    with pytest.raises(ValueError, match="call `index` first"):
        model.encode([{"text": ["a"]}], **query)
    with pytest.raises(ValueError, match="nothing to search in"):
        model.search([])


class Banking(AbsTaskClassification):
    """The texts of banking77's first eight labels."""

    metadata = metadata("Banking77Slice", "Classification", "accuracy")
    n_experiments = 1
    folder = Path()

    def load_data(self, num_proc=None, **_):
        self.dataset = datasets.DatasetDict(
            {split: self.read(split) for split in ("train", "test")}
        )
        self.data_loaded = True

    def read(self, split):
        with gzip.open(self.folder / f"{split}.jsonl.gz", "rt") as stream:
            rows = [json.loads(line) for line in stream]
        names = sorted({row["label"] for row in rows})[:8]
        rows = [row for row in rows if row["label"] in names]
        labels = [names.index(row["label"]) for row in rows]
        texts = [row["text"] for row in rows]
        return datasets.Dataset.from_dict({"text": texts, "label": labels})


def test_a_slice_of_banking77(loaded, shared_data):
    Banking.folder = shared_data / "tasks" / "banking77"
    scores = main_scores(run(MtebEncoder(loaded), Banking()))
    assert scores["Banking77Slice"] > 0.8
