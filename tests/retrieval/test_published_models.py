"""Figures of published models: our evaluation against sentence-transformers'.

Minutes to hours on a CPU; JAX_PLATFORMS=cuda takes a GPU.
"""

import ir_measures
import jax
import numpy as np
import pytest

import cdejax
from cdejax.data.beir import read_collection
from cdejax.retrieval.evaluate import evaluate_embedder


@pytest.mark.slow
@pytest.mark.parametrize("model", ["minilm", "mpnet"])
def test_ndcg_on_scifact(shared_data, model, request):
    folder = request.getfixturevalue(model)
    st = pytest.importorskip("sentence_transformers")
    collection = read_collection(shared_data / "collections" / "scifact")
    theirs = st.SentenceTransformer(str(folder))
    documents = theirs.encode(collection.documents, normalize_embeddings=True)
    scores = theirs.encode(collection.queries, normalize_embeddings=True) @ documents.T
    run = [
        ir_measures.ScoredDoc(query, collection.document_ids[i], float(row[i]))
        for query, row in zip(collection.query_ids, scores, strict=True)
        for i in np.argsort(-row)[:1000]
    ]
    qrels = [
        ir_measures.Qrel(query, document, grade)
        for query, judged in collection.qrels.items()
        for document, grade in judged.items()
    ]
    measure = ir_measures.parse_measure("nDCG@10")
    expected = ir_measures.calc_aggregate([measure], qrels, run)[measure]
    with jax.default_matmul_precision("highest"):  # as torch on a GPU, no TF32
        result = evaluate_embedder(cdejax.load(folder, dtype="float32"), collection)
    assert result.scores["nDCG@10"].mean() == pytest.approx(expected, abs=1e-3)
    assert expected > 0.6
