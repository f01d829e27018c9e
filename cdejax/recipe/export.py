"""Exports each variant's best model as a Hugging Face folder."""

from __future__ import annotations

import functools
from pathlib import Path

from cdejax.config import Config
from cdejax.export.check import check_export
from cdejax.export.folder import export_model
from cdejax.export.onnx import add_onnx, require_libraries
from cdejax.folders.paths import resolve_folder
from cdejax.recipe.card import describe_variant
from cdejax.recipe.stages import one_lookup, root_of, variants_of
from cdejax.recipe.variant import make_embedder, trained_model


@one_lookup()
def export(config: Config, *, onnx: bool = False, int8: bool = False) -> str:
    """Exports every variant; returns the folders, one per line.

    Args:
      config: the recipe.
      onnx: add ONNX graphs to the folders.
      int8: also add 8-bit graphs.

    Raises:
      ValueError: the requested ONNX graphs cannot be made, a variant was not trained,
        or an export does not reproduce the variant's vectors.
    """
    variants = variants_of(config)
    if onnx:
        _check_onnx(variants)
    folders = [export_variant(*item) for item in variants.items()]
    if onnx:
        for folder in folders:
            add_onnx(folder, int8=int8, overwrite=True)
    return "\n".join(str(path) for path in folders)


def _check_onnx(variants: dict[str, Config]) -> None:
    """Rejects, before any export, variants that have no ONNX graph."""
    require_libraries()
    kinds = {name: resolved.model.kind for name, resolved in variants.items()}
    if contextual := [name for name, kind in kinds.items() if kind == "contextual"]:
        others = [name for name in kinds if name not in contextual]
        advice = f"; `--variant {others[0]}` exports that one" if others else ""
        raise ValueError(
            f"--format onnx: {', '.join(contextual)} is contextual and reads a context "
            "beside the text, but an ONNX graph takes text alone: export without it, "
            f"then `cdejax bake` with a context, then `cdejax onnx`{advice}"
        )


def export_variant(name: str, config: Config) -> Path:
    """Exports one variant to its folder `export`, which appears only once checked."""
    model = trained_model(config, name)
    embedder = make_embedder(config, model, name)
    return export_model(
        model,
        resolve_folder(config.model.encoder),
        root_of(config) / name / "export",
        prompts=embedder.prompts,
        max_length=embedder.max_length,
        context_length=embedder.context_length,
        metadata=describe_variant(name, config),
        check=functools.partial(check_export, embedder),
    )
