"""Evaluation end to end on tiny collections, reports, held-out pairs."""

import json
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.config import EvaluationConfig
from cdejax.data.beir import Collection
from cdejax.data.ragged import Ragged
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.embedder import Embedder
from cdejax.models import Bert, BertConfig, BiEncoder, ContextualEncoder
from cdejax.retrieval.collections import evaluation_collections, heldout_collection
from cdejax.retrieval.contexts import make_context, random_texts
from cdejax.retrieval.evaluate import (
    Result,
    evaluate_all,
    evaluate_bm25,
    evaluate_embedder,
)
from cdejax.retrieval.identical import own_documents
from cdejax.retrieval.report import (
    difference,
    read_results,
    summary,
    table,
    write_report,
)


def collection(documents, queries, qrels):
    return Collection(
        [f"d{i}" for i in range(len(documents))],
        documents,
        [f"q{i}" for i in range(len(queries))],
        queries,
        qrels,
        {},
    )


ANIMALS = collection(
    ["the cat sleeps", "dogs bark loudly", "", "birds sing songs", "fish swim far"],
    ["cat sleeps", "bark", "songs of birds", "zebra"],
    {"q0": {"d0": 1}, "q1": {"d1": 2, "d4": 1}, "q2": {"d3": 1}, "q3": {"d4": 1}},
)
LAW = collection(
    [f"section {i} of the act on taxes" for i in range(9)],
    ["section 3 taxes"],
    {"q0": {"d3": 1}},
)


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
def biencoder(minilm):
    return Embedder(BiEncoder(bert()), Tokenizer.load(minilm), max_length=16, name="bi")


@pytest.fixture(scope="module")
def contextual(minilm):
    model = ContextualEncoder.from_encoder(
        bert(), nnx.Rngs(0), context_size=4, soft_tokens=2
    )
    kernel = model.output_projection.last.kernel
    kernel[...] = jnp.asarray(np.random.default_rng(0).normal(size=kernel.shape))
    return Embedder(model, Tokenizer.load(minilm), max_length=16, name="ctx")


def test_embedder_is_scored_as_by_hand(biencoder):
    result = evaluate_embedder(biencoder, ANIMALS)
    documents = biencoder.encode(ANIMALS.documents)
    queries = biencoder.encode(ANIMALS.queries, "query")
    order = np.argsort(-(queries @ documents.T), 1, kind="stable")
    for row in (0, 2, 3):
        wanted = int(next(iter(ANIMALS.qrels[f"q{row}"]))[1:])
        rank = order[row].tolist().index(wanted) + 1
        assert result.scores["RR@10"][row] == pytest.approx(1 / rank)
        assert result.scores["nDCG@10"][row] == pytest.approx(1 / np.log2(rank + 1))
    assert result.query_ids == ANIMALS.query_ids
    assert result.settings["prompts"] == {"query": "", "document": ""}
    assert result.settings["max_length"] == 16
    assert result.settings["weights"] == biencoder.hash


def test_dot_products_are_searched_and_distances_refused(minilm):
    tokenizer, model = Tokenizer.load(minilm), BiEncoder(bert())
    embedder = Embedder(model, tokenizer, max_length=32, similarity_fn_name="dot")
    found = evaluate_embedder(embedder, ANIMALS)
    queries, documents = (
        embedder.encode(texts, normalize=False)
        for texts in (ANIMALS.queries, ANIMALS.documents)
    )
    order = np.argsort(-(queries @ documents.T)[0])
    rank = 1 + order.tolist().index(0)  # of the first query's only answer
    assert found.scores["RR@10"][0] == pytest.approx(1 / rank)
    far = Embedder(model, tokenizer, max_length=32, similarity_fn_name="euclidean")
    with pytest.raises(ValueError, match="compares vectors by euclidean"):
        evaluate_embedder(far, ANIMALS)


def test_bm25():
    scores = evaluate_bm25(ANIMALS).scores
    assert scores["RR@10"].tolist() == [1, 1, 1, 0]
    assert scores["R@100"].tolist() == [1, 0.5, 1, 0]


def test_contexts(contextual):
    made = {
        kind: make_context(contextual, kind, ANIMALS, seed=1, other=LAW)
        for kind in ("corpus", "null", "random", "other-domain")
    }
    assert len({context.hash for context in made.values()}) == 4
    assert [len(context) for context in made.values()] == [4, 0, 4, 4]
    assert made["other-domain"].hash == contextual.context(LAW.documents, seed=1).hash
    assert made["corpus"].hash == contextual.context(ANIMALS.documents, seed=1).hash


def test_random_texts_are_seeded_and_odd():
    assert random_texts(5, 0) == random_texts(5, 0) != random_texts(5, 1)
    assert len(set(random_texts(100, 0))) == 100


def test_evaluate_all(biencoder, contextual):
    config = EvaluationConfig(contexts=("corpus", "null", "other-domain"))
    collections = {"animals": ANIMALS, "law": LAW}
    found = [
        (r.collection, r.system) for r in evaluate_all(contextual, collections, config)
    ]
    systems = ["BM25", "ctx (corpus)", "ctx (null)", "ctx (other-domain)"]
    assert found == [(name, s) for name in collections for s in systems]
    plain = evaluate_all(biencoder, collections, config, system="ours")
    assert [r.system for r in plain] == ["BM25", "ours"] * 2
    with pytest.raises(ValueError, match="only one is evaluated"):
        list(evaluate_all(contextual, {"law": LAW}, config))


def test_refuses(contextual):
    with pytest.raises(ValueError, match="context 'own'"):
        make_context(contextual, "own", ANIMALS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a second collection"):
        make_context(contextual, "other-domain", ANIMALS)


@dataclass
class Part:
    query: np.ndarray
    document: np.ndarray
    domain: np.ndarray
    negatives: Ragged

    def __len__(self):
        return len(self.query)


@dataclass
class FakePairs:
    queries: list
    documents: list
    query_content: np.ndarray
    document_content: np.ndarray
    domains: list
    heldout: Part


@pytest.fixture
def pairs():
    """Query `a` and document `x` stand in both domains; `n` is a negative."""
    return FakePairs(
        ["a", "b", "a"],
        ["x", "y", "x", "n", "unused"],
        np.array([10, 11, 10]),
        np.array([20, 21, 20, 22, 23]),
        ["one", "two"],
        Part(
            np.array([0, 1, 2, 2], np.int32),
            np.array([0, 1, 2, 1], np.int32),
            np.array([0, 0, 1, 1], np.int32),
            Ragged.from_rows([[3], [], [], []]),
        ),
    )


def test_heldout_pairs_of_all_domains(pairs):
    found = heldout_collection(pairs)
    assert dict(zip(found.document_ids, found.documents, strict=True)) == {
        "20": "x",
        "21": "y",
        "22": "n",
    }
    assert found.queries == ["a", "b"]
    assert found.qrels == {"10": {"20": 1, "21": 1}, "11": {"21": 1}}
    assert found.counts["judgments"] == 3


def test_heldout_pairs_of_one_domain(pairs):
    found = heldout_collection(pairs, "two")
    assert sorted(found.documents) == ["x", "y"]
    assert found.qrels == {"10": {"20": 1, "21": 1}}
    # the pair (a, y) of domain two holds in domain one, too, where both texts stand
    assert heldout_collection(pairs, "one").qrels["10"] == {"20": 1, "21": 1}


def test_heldout_query_that_is_a_document_leaves_itself_out(pairs):
    pairs.documents[1], pairs.document_content[1] = "a", 10  # as equal texts are kept
    found = heldout_collection(pairs)
    assert found.qrels["10"] == {"20": 1, "10": 1}, "an answer, for query `a` has it"
    assert own_documents(found).tolist() == [-1, -1]
    pairs.heldout.document[3] = 0
    found = heldout_collection(pairs)
    assert found.document_ids[own_documents(found)[0]] == "10"
    assert evaluate_bm25(found).settings["own_documents"] == 1


def test_evaluation_collections(pairs, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name / "beir"
        (folder / "qrels").mkdir(parents=True)
        (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "a text"}\n')
        (folder / "queries.jsonl").write_text('{"_id": "q", "text": "text"}\n')
        for split in ("test", "dev"):
            (folder / f"qrels/{split}.tsv").write_text(
                "query-id\tcorpus-id\tscore\nq\td\t1\n"
            )
    paths = (str(tmp_path / "one/beir"), f"{tmp_path}/one/beir:dev")
    config = EvaluationConfig(collections=paths, heldout_by_domain=True)
    found = evaluation_collections(config, pairs)
    assert list(found) == [
        "beir",
        "beir:dev",
        "held-out",
        "held-out/one",
        "held-out/two",
    ]
    assert found["held-out/two"].qrels == heldout_collection(pairs, "two").qrels
    with pytest.raises(ValueError, match="nothing to evaluate on"):
        evaluation_collections(EvaluationConfig())
    same = EvaluationConfig(collections=(paths[0], str(tmp_path / "two/beir")))
    with pytest.raises(ValueError, match="two are called 'beir'"):
        evaluation_collections(same)


def test_heldout_refuses(pairs):
    with pytest.raises(ValueError, match=r"'tow'.*mean 'two'"):
        heldout_collection(pairs, "tow")
    empty = np.zeros(0, np.int32)
    pairs.heldout = Part(empty, empty, empty, Ragged.from_rows([]))
    with pytest.raises(ValueError, match="heldout_fraction"):
        heldout_collection(pairs)


@pytest.fixture
def results():
    rng = np.random.default_rng(0)
    made = []
    for name, count in (("held-out", 300), ("scifact", 120)):
        base = rng.random(count)
        for number, system in enumerate(
            ["BM25", "untrained", "biencoder, shuffled", "contextual (corpus)"]
        ):
            scores = np.clip(base + 0.05 * number * rng.random(count), 0, 1)
            made.append(
                Result(
                    system,
                    name,
                    [str(i) for i in range(count)],
                    {"nDCG@10": scores, "R@100": scores**0.5},
                    {"max_length": 128},
                )
            )
    return made


def test_summary_pairs_systems(results):
    rows = summary(results, baseline="BM25")
    assert "difference" not in rows[0]
    found = rows[3]["difference"]["nDCG@10"]
    expected = results[3].scores["nDCG@10"] - results[0].scores["nDCG@10"]
    assert found["mean"] == pytest.approx(expected.mean())
    assert 0 < found["low"] < found["mean"] < found["high"]
    own = rows[3]["measures"]["nDCG@10"]
    assert own["high"] - own["low"] > 3 * (found["high"] - found["low"])


def test_report_is_written_and_read(results, tmp_path):
    paths = write_report(results, tmp_path / "report", baseline="BM25", resamples=200)
    assert paths["chart"].read_bytes()[:4] == b"\x89PNG"
    assert len(json.loads(paths["summary"].read_text())) == 8
    again = read_results(tmp_path / "report")
    assert [r.system for r in again] == [r.system for r in results]
    for old, new in zip(results, again, strict=True):
        assert new.query_ids == old.query_ids
        assert new.settings == old.settings
        for name in old.scores:
            np.testing.assert_allclose(new.scores[name], old.scores[name], atol=1e-6)


def test_table_reads_well(results):
    from rich.console import Console

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(results, baseline="BM25", resamples=200))
    text = console.export_text()
    lines = [line for line in text.splitlines() if "contextual" in line]
    mean = results[3].scores["nDCG@10"].mean()
    assert f"{mean:.3f} [."[1:] in lines[0]
    assert "+.0" in lines[0]
    assert text.count("scifact (120 queries)") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert len(lines) == 2


def test_differences_need_the_same_queries(results):
    with pytest.raises(ValueError, match="same queries"):
        difference(results[0], results[4])


def test_report_refuses(results, tmp_path):
    with pytest.raises(ValueError, match="'bm25': the systems are BM25"):
        summary(results, baseline="bm25")
    with pytest.raises(ValueError, match=r"no results\.json"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('[{"system": 1}]')
    with pytest.raises(ValueError, match="not written by cdejax"):
        read_results(tmp_path)
