"""Pairs of queries and documents: sources, validation, splits, tokens.

- `pairs.pairs_stage`: reads, validates and splits the pairs of a recipe.
- `pairs.Pairs`: the pairs of an artefact.
- `tokens.tokens_stage`: tokenises all texts of the pairs.
- `tokens.Tokens`: the token ids of an artefact.
- `tokenizer.Tokenizer`: the tokenizer of a model folder.
- `sources.read_source`: reads the rows of a source.
- `beir.Collection`: a retrieval collection: queries, documents and judgments.
- `beir.read_collection`: reads a BEIR folder.
- `ragged.Ragged`: rows of different lengths in one array.
- `loader.batches`: prefetches batches in threads.
- `write_tfds.write_tfds`: writes the pairs of sources as a TensorFlow dataset.
"""
