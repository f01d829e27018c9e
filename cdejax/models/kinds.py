"""Unions of the models, which type checkers narrow by `kind`."""

from __future__ import annotations

from cdejax.models.baked import BakedEncoder
from cdejax.models.biencoder import BiEncoder
from cdejax.models.contextual import ContextualEncoder

TrainableModel = BiEncoder | ContextualEncoder
"""What training starts from and gives."""
Model = TrainableModel | BakedEncoder
"""What a folder may hold."""
