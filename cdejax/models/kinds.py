"""Unions of the model classes, which type checkers narrow by `kind`."""

from __future__ import annotations

from cdejax.models.baked import BakedEncoder
from cdejax.models.biencoder import BiEncoder
from cdejax.models.contextual import ContextualEncoder

TrainableModel = BiEncoder | ContextualEncoder
"""A model that can be trained."""
Model = TrainableModel | BakedEncoder
"""A model that `from_pretrained` can load."""
