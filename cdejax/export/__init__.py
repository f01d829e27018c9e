"""Trained models as Hugging Face folders."""

from cdejax.export.folder import export_model as export_model
