"""The static shapes of all steps of a plan, computed once and stored as an artefact.

They depend on the lengths of the texts of every step, so computing them takes a pass
over the whole plan. Process 0 does this once and writes an artefact; later starts read
it. The shapes determine how a step is computed, not what it computes, so they are not
part of the run's fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdejax.runtime.processes import main_first
from cdejax.storage import artifacts
from cdejax.training.batch import BatchSettings
from cdejax.training.layout import Layout, Shape
from cdejax.training.packed_layout import PackedLayout, plan_packed
from cdejax.training.padded_layout import PaddedLayout, plan_padded
from cdejax.training.relation_ids import widest_known
from cdejax.training.step_rows import StepSampler
from cdejax.training.text_sharding import CONTEXT, TEXTS, StepLengths, TextSharding

if TYPE_CHECKING:
    from cdejax.clustering.plan import Plan
    from cdejax.data.pairs import Pairs
    from cdejax.data.tokens import Tokens
    from cdejax.training.run_folder import Inputs

_FILE = "shapes.json"
_DECISIVE = ("pairs", "tokens", "plan")
"""Artefacts that determine the shapes, together with the settings."""
_KINDS = {kind.kind: kind for kind in (PackedLayout, PaddedLayout)}
"""Layout classes by their name in the file."""


@dataclass(frozen=True)
class BatchShapes:
    """Static shapes that fit every step of a plan."""

    layouts: tuple[Layout, ...]
    """Layout of the texts and, for a contextual encoder, of the context."""
    known_width: int
    """Maximum number of known positives of a query outside its step."""

    @classmethod
    def open(cls, folder: str | Path) -> BatchShapes:
        """Reads a shapes artefact; raises ValueError if it is missing or damaged."""
        artifacts.read_manifest(folder)
        value = artifacts.read_json(Path(folder) / _FILE)
        return cls(tuple(map(_layout, value["layouts"])), value["known_width"])

    def save(self, folder: str | Path) -> None:
        """Writes the file that `open` reads."""
        layouts = [_layout_values(layout) for layout in self.layouts]
        value = {"layouts": layouts, "known_width": self.known_width}
        artifacts.write_json(Path(folder) / _FILE, value)


def _layout_values(layout: Layout) -> dict[str, Any]:
    """JSON values from which `_layout` rebuilds the layout."""
    shapes = [shape._asdict() for shape in layout.shapes]
    return {"kind": layout.kind, **artifacts.jsonable(layout), "shapes": shapes}


def _layout(values: dict[str, Any]) -> Layout:
    shapes = tuple(Shape(**shape) for shape in values.pop("shapes"))
    return _KINDS[values.pop("kind")](shapes, **values)


def find_shapes(
    pairs: Pairs, tokens: Tokens, plan: Plan, settings: BatchSettings
) -> BatchShapes:
    """Computes the shapes that fit all steps of a plan, by a pass over all of them.

    Args:
      pairs: the training pairs.
      tokens: token ids of their texts.
      plan: the pairs of each step.
      settings: the other settings that determine the batches and their shapes.

    Raises:
      ValueError: as `BatchSettings.check`.
    """
    settings.check(plan.batch_size)
    sampler = StepSampler(pairs.train, plan, settings)
    layouts = plan_layouts(TextSharding(tokens, sampler), settings)
    return BatchShapes(layouts, widest_known(pairs, sampler))


def plan_layouts(sharding: TextSharding, settings: BatchSettings) -> tuple[Layout, ...]:
    """Plans the layout of the texts and, for a contextual encoder, of the context.

    Texts that are encoded with a context have one row each; others may be packed.
    """
    tokens, widths = settings.chunk_tokens, settings.max_widths

    def without_context(sides: slice) -> Layout:
        lengths = StepLengths(sharding, sides)
        if settings.packed:
            return plan_packed(lengths, tokens)
        return plan_padded(lengths, tokens, max_widths=widths)

    if not settings.context_size:
        return (without_context(TEXTS),)
    texts = StepLengths(sharding, TEXTS)
    front = settings.context_size + settings.soft_tokens
    padded = plan_padded(texts, tokens, front=front, max_widths=widths)
    return padded, without_context(CONTEXT)


def shapes_stage(inputs: Inputs, settings: BatchSettings, root: str | Path) -> Path:
    """Writes the shapes artefact of a run, unless it exists already.

    Args:
      inputs: the artefacts that the run reads.
      settings: the other settings that determine the batches and their shapes.
      root: the folder of all artefacts.

    Returns:
      The artefact's folder, which holds `shapes.json`.
    """
    spec: dict[str, Any] = {name: inputs.fingerprints[name] for name in _DECISIVE}
    spec["settings"] = settings

    def build(folder: Path) -> dict[str, Any]:
        find_shapes(inputs.pairs, inputs.tokens, inputs.plan, settings).save(folder)
        return {"steps": inputs.plan.total_steps}

    return artifacts.run_stage(root, "shapes", spec, build)


def shapes_of(inputs: Inputs, settings: BatchSettings) -> BatchShapes:
    """The shapes of a run's steps, from an artefact if the run has an artefact folder.

    Process 0 writes the artefact if it is missing, while the other processes wait.

    Raises:
      ValueError: as `BatchSettings.check`, or the artefact cannot be written or read.
    """
    settings.check(inputs.plan.batch_size)
    if (root := inputs.root) is None:
        return find_shapes(inputs.pairs, inputs.tokens, inputs.plan, settings)
    folder = main_first("shapes", lambda: shapes_stage(inputs, settings, root))
    return BatchShapes.open(folder)
