"""A whole recipe: its stages in order, its variants, its evaluation results.

- `train.train`: trains the variants of a recipe; `cdejax.train`.
- `run.run`: runs every stage of every variant, evaluation, exports and the report.
- `stages.Stages`: artefact folders of a recipe, made on first access.
- `variant.train_variant`: trains one variant.
- `scores.evaluate`: evaluates every variant, the model it started from, and BM25.
- `scores.report`: writes tables and charts that compare the results.
- `export.export_variant`: writes a trained variant as a Hugging Face folder.
- `card.describe_variant`: collects a variant's metadata for its model card.
- `dry_run.dry_run`: reports rows, steps, padding, memory and FLOPs without training.
"""
