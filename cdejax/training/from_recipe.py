"""Builds a run's batches and loss settings from a recipe."""

from __future__ import annotations

from jax.sharding import Mesh

from cdejax.config import Config
from cdejax.models import TrainableModel
from cdejax.training.batch import BatchSettings
from cdejax.training.batch_maker import BatchMaker
from cdejax.training.memory import chunk_tokens
from cdejax.training.objectives.registry import objective_of
from cdejax.training.relation import Relation
from cdejax.training.run_folder import Inputs
from cdejax.training.shapes import shapes_of
from cdejax.training.step import LossSettings


def make_batches(
    config: Config, inputs: Inputs, model: TrainableModel, mesh: Mesh
) -> BatchMaker:
    """Returns the maker of a run's batches, with a chunk size that fits the devices.

    Raises:
      ValueError: the recipe uses hard negatives but the pairs have none, or the model
        does not fit on the devices.
    """
    training, contextual = config.training, config.model.kind == "contextual"
    if training.negatives_per_query and not len(inputs.pairs.train.negatives.values):
        raise ValueError(
            f"training.negatives_per_query is {training.negatives_per_query}, but the "
            "pairs have no hard negatives; set it to 0 or name their column in "
            "data.sources.columns.negatives"
        )
    settings = BatchSettings(
        seed=config.seed,
        devices=mesh.size,
        chunk_tokens=training.chunk_tokens or chunk_tokens(model, mesh),
        context_size=config.model.context_size if contextual else 0,
        soft_tokens=config.model.soft_tokens if contextual else 0,
        negatives_per_query=training.negatives_per_query,
        max_widths=training.max_widths,
        packed=training.packed,
    )
    shapes = shapes_of(inputs, settings)
    vectors = inputs.vectors if loss_settings(config).needs_surrogate else None
    return BatchMaker(
        inputs.pairs, inputs.tokens, inputs.plan, settings, shapes, vectors
    )


def loss_settings(config: Config) -> LossSettings:
    """The loss settings of a recipe."""
    training = config.training
    return LossSettings(
        objective_of(training),
        Relation(training.duplicates, training.false_negative_margin),
        block=training.loss_block,
        sequence_dropout=config.model.sequence_dropout,
        ring=training.ring,
    )
