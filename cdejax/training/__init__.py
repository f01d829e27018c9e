"""Training: exact contrastive training with large batches on any number of devices.

- `loop.train`: trains the model of a recipe, or resumes its run.
- `from_recipe.make_batches`: the batches of a run on a mesh.
- `run_model.build_model`: the model that a recipe starts from.
- `run_model.initial_params`: the parameters that a run starts from.
- `run_model.trained_params`: the parameters that a run ended with.
- `batch_maker.BatchMaker`: makes the batch of any step from the artefacts.
- `batch.Batch`: the arrays of a step.
- `batch.BatchSettings`: what decides the content and shapes of a step.
- `shapes.find_shapes`: the static shapes that serve every step of a plan.
- `cache.encode_cached`: encodes texts chunk by chunk with exact gradients (GradCache).
- `objectives.Objective`: base class of what is minimised.
- `objectives.info_nce`: InfoNCE on plain arrays.
- `relation.Relation`: which documents are positives, negatives, or ignored.
- `step.train_step`: the compiled training step.
- `optimizer.make_optimizer`: AdamW with a schedule and gradient clipping.
- `checkpoint.Checkpoints`: asynchronous checkpoints of a pytree.
- `best_checkpoint.BestCheckpoint`: the parameters with the highest score.
- `callbacks.Callback`: base class of reactions to steps, evaluations, checkpoints.
- `callbacks.StopTraining`: ends a run early, raised by a callback.
- `metrics.MetricsLog`: the callback that writes metrics.jsonl.
- `tensorboard.TensorBoard`: the callback that writes TensorBoard events.
- `metrics.read_metrics`: reads metrics.jsonl.
- `sharding.make_mesh`: the mesh of devices that training runs on.
"""
