"""Texts to vectors: models in use, with their contexts."""
