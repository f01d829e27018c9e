"""The parts of a model card that are the same for all models of a kind."""

BIENCODER = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
documents = model.encode_document(["…"])
queries = model.encode_query(["…"])
scores = model.similarity(queries, documents)
```"""

_REMOTE_CODE = """\
fetch nothing. They build on transformers (5.17 or later) and sentence-transformers (5.7
or later). `trust_remote_code=True` is needed because sentence-transformers asks it of
every folder that brings code; no stock module lets a text attend to vectors that
are not its own."""

CONTEXTUAL = (
    """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}", trust_remote_code=True)
context = model.encode(corpus_sample, prompt_name="document")
documents = model.encode_document(["…"], dataset_embeddings=context)
queries = model.encode_query(["…"], dataset_embeddings=context)
scores = model.similarity(queries, documents)
```

The `.py` files of this folder hold the whole model in torch and """
    + _REMOTE_CODE
)

BAKED = (
    """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}", trust_remote_code=True)
documents = model.encode_document(["…"])
queries = model.encode_query(["…"])
scores = model.similarity(queries, documents)
```

Vectors have length 1. The `.py` files of this folder hold the whole model in torch
and """
    + _REMOTE_CODE
)

CONTEXT = """\
The first stage embeds a sample of the corpus: {size} documents, as in training. The
second stage embeds documents and queries in the light of that sample. Queries need the
context that their documents had: keep it with the index. With fewer documents the
missing places stay out of attention; with more, draw {size} at random. Without a corpus
pass an array of shape [0, hidden]: learned null vectors take the context's place.

`cdejax context` draws, chooses and saves a context; `cdejax bake` makes a model of this
folder and a context that needs none to be given."""

LIMITS = """\
- Texts are cut at {max_length} tokens; what follows is not read.
- Language of the training data: {language}.
- The prompts are part of the model: without them vectors are worse.
- Tested for nothing but what stands under Evaluation: not for other languages or
  domains, for fairness or bias, for classification, or for text that is written to
  mislead a search."""
