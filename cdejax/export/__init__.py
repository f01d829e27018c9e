"""Trained models as Hugging Face folders for other libraries.

- `export_model`: writes a model as a folder for transformers and sentence-transformers.
- `baked.bake`: bakes a context into a contextual model.
- `baked.export_baked`: writes a contextual model with a context baked in.
- `onnx.add_onnx`: adds an ONNX graph to an export.
- `check.check_export`: compares the vectors of an export with those of its model.
- `card.model_card`: the model card as Markdown.
"""

from cdejax.export.folder import export_model as export_model
