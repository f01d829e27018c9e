"""Contextual document embeddings in JAX."""
