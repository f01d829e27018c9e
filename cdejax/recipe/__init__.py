"""A whole recipe: its stages in order, its variants, its figures.

- `train.train`: trains the variants of a recipe; `cdejax.train`.
- `run.run`: every stage of every variant, evaluation, exports and the report.
- `stages.Stages`: artefact folders of a recipe, made when they are asked for.
- `variant.train_variant`: trains one variant.
- `scores.evaluate`: evaluates every variant, its start and BM25.
- `scores.report`: draws and tabulates the figures side by side.
- `export.export_variant`: writes a trained variant as a Hugging Face folder.
- `card.describe_variant`: what a model card says of a variant.
- `dry_run.dry_run`: counts rows, steps, padding, memory and FLOPs without training.
"""
