"""Index a corpus with its context in Qdrant (local mode: a folder, no server).

    python examples/qdrant_search.py MODEL STORE "copy a whole directory"

MODEL is a folder that `cdejax.load` reads. The first run makes the collection, whose
metadata hold the hashes of model and context; a contextual model's context lies in
STORE/context. Later runs search it, and refuse another model's vectors or another
context (`--context FOLDER`). For a server, give `QdrantClient` its address instead.
Needs `pip install "qdrant-client>=1.16"`.
"""

from qdrant_client import QdrantClient, models
from shared import Document, arguments, corpus, find_context, provenance, refuse_others

import cdejax

NAME = "documents"


def build(
    client: QdrantClient,
    documents: list[Document],
    embedder: cdejax.Embedder,
    context: cdejax.Context | None,
) -> None:
    """Makes the collection, with what it was made with in its metadata."""
    vectors = embedder.encode([d.text for d in documents], "document", context)
    client.create_collection(
        NAME,
        vectors_config=models.VectorParams(
            size=embedder.dim, distance=models.Distance.COSINE
        ),
        metadata=provenance(embedder, context),
    )
    payload = [document._asdict() for document in documents]
    client.upload_collection(NAME, vectors, payload, ids=range(len(documents)))


def main() -> None:
    """Builds the store if it is not there, then searches it."""
    given = arguments(__doc__)
    embedder = cdejax.load(given.model)
    documents = corpus()
    texts = [document.text for document in documents]
    context = find_context(embedder, given.store, given.context, texts)
    client = QdrantClient(path=str(given.store / "qdrant"))
    if client.collection_exists(NAME) and client.count(NAME).count < len(documents):
        client.delete_collection(NAME)  # a build that was stopped on its way
    if not client.collection_exists(NAME):
        build(client, documents, embedder, context)

    stored = client.get_collection(NAME).config.metadata or {}
    refuse_others(stored, provenance(embedder, context))
    queries = embedder.encode(given.query, "query", context)
    for query, vector in zip(given.query, queries.tolist(), strict=True):
        print(query)
        for point in client.query_points(NAME, query=vector, limit=3).points:
            payload = point.payload or {}
            print(f"  {point.score:.3f}  {payload['name']}: {payload['text']}")
    client.close()


if __name__ == "__main__":
    main()
