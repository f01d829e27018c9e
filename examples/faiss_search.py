"""Index a corpus with its context in FAISS and search it: exact inner products.

    python examples/faiss_search.py MODEL STORE "copy a whole directory"

MODEL is a folder that `cdejax.load` reads. The first run makes STORE: the index, the
names, the context of a contextual model and the hashes of both. Later runs search it,
and refuse another model's vectors or another context (`--context FOLDER`).
"""

import json
from pathlib import Path

import faiss
from shared import Document, arguments, corpus, find_context, provenance, refuse_others

import cdejax


def build(
    store: Path,
    documents: list[Document],
    embedder: cdejax.Embedder,
    context: cdejax.Context | None,
) -> None:
    """Writes the index and what it was made with."""
    vectors = embedder.encode([d.text for d in documents], "document", context)
    index = faiss.IndexFlatIP(embedder.dim)  # vectors have length 1: cosines
    index.add(vectors)  # type: ignore[call-arg]
    store.mkdir(parents=True, exist_ok=True)
    faiss.write_index(index, str(store / "index.faiss"))
    about = {**provenance(embedder, context), "documents": documents}
    (store / "index.json").write_text(json.dumps(about), encoding="utf-8")


def main() -> None:
    """Builds the store if it is not there, then searches it."""
    given = arguments(__doc__)
    embedder = cdejax.load(given.model)
    documents = corpus()
    texts = [document.text for document in documents]
    context = find_context(embedder, given.store, given.context, texts)
    if not (given.store / "index.json").is_file():
        build(given.store, documents, embedder, context)

    about = json.loads((given.store / "index.json").read_text(encoding="utf-8"))
    refuse_others(about, provenance(embedder, context))
    index = faiss.read_index(str(given.store / "index.faiss"))
    queries = embedder.encode(given.query, "query", context)
    for query, scores, rows in zip(given.query, *index.search(queries, 3), strict=True):
        print(query)
        for score, row in zip(scores, rows, strict=True):
            print(f"  {score:.3f}  {': '.join(about['documents'][row])}")


if __name__ == "__main__":
    main()
