"""Checks that a checkpoint's tensors fit a model; if not, says what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdejax.models.checkpoints.table import Tensors
from cdejax.models.pretrained.files import FLOATS

_SHOWN = 3
"""Maximum number of tensors that a message names for each kind of fault."""
_MISSING, _UNEXPECTED = "missing", "unexpected"
_SHAPE, _TYPE = "of another shape", "not of floats"


def check_fit(
    shapes: Mapping[str, tuple[int, ...]], tensors: Tensors, source: str
) -> None:
    """Raises ValueError unless tensors have the expected names, shapes and dtypes.

    Args:
      shapes: name and shape of each tensor that the model expects.
      tensors: the tensors of the checkpoint.
      source: their file, for messages.

    Raises:
      ValueError: some are missing, unexpected, or of another shape or dtype; one line
        with the number of each, the names of the first ones, and the likely cause.
    """
    both = [name for name in tensors if name in shapes]
    found = {
        _MISSING: [f"{n} {shape}" for n, shape in shapes.items() if n not in tensors],
        _UNEXPECTED: [f"{n} {t.shape}" for n, t in tensors.items() if n not in shapes],
        _SHAPE: [
            f"{name} is {tensors[name].shape}, not {shapes[name]}"
            for name in both
            if tensors[name].shape != shapes[name]
        ],
        _TYPE: [
            f"{name} is {tensors[name].dtype}"
            for name in both
            if tensors[name].dtype not in FLOATS
        ],
    }
    faults = {kind: names for kind, names in found.items() if names}
    if faults:
        said = "; ".join(f"{len(v)} {kind}: {_first(v)}" for kind, v in faults.items())
        raise ValueError(
            f"{source}: the weights do not fit the model of config.json ({said}). "
            f"{_advice(set(faults))}"
        )


def _first(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    rest = [f"and {more} more"] if more > 0 else []
    return ", ".join([*names[:_SHOWN], *rest])


def _advice(kinds: set[str]) -> str:
    """The likely cause of these kinds of fault, and the remedy."""
    # Quantised checkpoints have unexpected scales and packed tensors of other shapes,
    # too, so this comes first.
    if _TYPE in kinds:
        return (
            "They seem to be quantised: save them in float32, bfloat16 or float16, "
            "without quantisation"
        )
    if _SHAPE in kinds:
        cause = "The sizes in config.json are not those of these weights"
    elif {_MISSING, _UNEXPECTED} <= kinds:
        cause = "The names are those of another architecture than config.json's"
    elif _MISSING in kinds:
        cause = "The weights are incomplete, or of fewer layers than config.json has"
    else:
        cause = "The weights have parts or layers that config.json does not describe"
    return f"{cause}: copy both from one checkpoint"
