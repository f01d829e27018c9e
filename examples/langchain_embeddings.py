"""A LangChain `Embeddings` class, biencoder or contextual, in a vector store.

    python examples/langchain_embeddings.py MODEL STORE "copy a whole directory"

MODEL is a folder that `cdejax.load` reads; STORE keeps a contextual model's context
(`--context FOLDER` takes another). Vectors live in LangChain's `InMemoryVectorStore`;
its other stores take the same `CdejaxEmbeddings`. Needs `pip install langchain-core`.
"""

from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from shared import arguments, corpus, find_context

import cdejax


class CdejaxEmbeddings(Embeddings):
    """An embedder for LangChain; documents and queries get their prompts.

    Args:
      embedder: from `cdejax.load`.
      context: a contextual model's, one for all documents and queries of a store.
    """

    def __init__(
        self, embedder: cdejax.Embedder, context: cdejax.Context | None = None
    ):
        self.embedder = embedder
        self.context = context
        embedder.encode([""], "query", context)  # a wrong context fails here, at once

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of length 1 of documents."""
        return self.embedder.encode(texts, "document", self.context).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Vector of length 1 of a query."""
        return self.embedder.encode([text], "query", self.context)[0].tolist()


def main() -> None:
    """Puts the corpus into a store and searches it."""
    given = arguments(__doc__)
    embedder = cdejax.load(given.model)
    documents = corpus()
    texts = [document.text for document in documents]
    context = find_context(embedder, given.store, given.context, texts)
    store = InMemoryVectorStore(CdejaxEmbeddings(embedder, context))
    store.add_texts(texts, metadatas=[{"name": d.name} for d in documents])
    for query in given.query:
        print(query)
        for found, score in store.similarity_search_with_score(query, k=3):
            print(f"  {score:.3f}  {found.metadata['name']}: {found.page_content}")


if __name__ == "__main__":
    main()
