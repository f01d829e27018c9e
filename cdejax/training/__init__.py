"""Training: exact contrastive training with large batches on any number of devices.

- `loop.train`: trains the model of a recipe, or resumes its run.
- `loop.make_batches`: the batches of a run on a mesh.
- `start.build_model`: the model that a recipe starts from.
- `start.initial_params`: the parameters that a run starts from.
- `start.trained_params`: the parameters that a run ended with.
- `batch_maker.BatchMaker`: makes the batch of any step from the artefacts.
- `batch.Batch`: the arrays of a step.
- `batch.BatchSettings`: what decides the content and shapes of a step.
- `shapes.find_shapes`: the static shapes that serve every step of a plan.
- `cache.encode_cached`: encodes texts chunk by chunk with exact gradients (GradCache).
- `loss.info_nce`: InfoNCE over the global batch.
- `ring.ring_info_nce`: InfoNCE with documents passed from device to device.
- `relation.relate`: which documents are a query's positives, negatives or neither.
- `step.train_step`: the compiled training step.
- `optimizer.make_optimizer`: AdamW with a schedule and gradient clipping.
- `checkpoint.Checkpoints`: asynchronous checkpoints of a pytree.
- `best_checkpoint.BestCheckpoint`: the parameters with the highest score.
- `metrics.MetricsLog`: writes metrics.jsonl and TensorBoard events.
- `metrics.read_metrics`: reads metrics.jsonl.
- `sharding.make_mesh`: the mesh of devices that training runs on.
"""
