"""Encoding texts: models in use, with their tokenizers, prompts and contexts.

- `load.load`: loads an embedder from an exported or Hugging Face folder.
- `embedder.Embedder`: encodes texts with a biencoder or contextual encoder.
- `choice.Choice`: chooses the texts of a context.
- `keys.folder_files`: hashes of the files that decide a folder's vectors.
"""
