"""A contextual model and one context as a folder whose texts need nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cdejax.embedding.embedder import Embedder
from cdejax.embedding.load import load
from cdejax.export.card import model_card
from cdejax.export.check import check_sentence_transformers
from cdejax.export.configs import contextual_config, sentence_transformers_config
from cdejax.export.folder import CODE, check_settings, write_contextual
from cdejax.export.publish import CARD, publish
from cdejax.export.tokenizer import write_tokenizer
from cdejax.folders.marker import read_marker
from cdejax.folders.paths import check_outside, resolve_folder
from cdejax.models import BakedEncoder
from cdejax.models.context import INFO, Context
from cdejax.models.pretrained.weights import to_state_dict
from cdejax.storage.artifacts import jsonable, read_json, write_json

_CODE = (*CODE, "modeling_cdejax_baked", "sentence_transformers_cdejax_baked")
_CLASSES = {
    "architectures": ["CdejaxBakedModel"],
    "auto_map": {
        "AutoConfig": "modeling_cdejax_baked.CdejaxBakedConfig",
        "AutoModel": "modeling_cdejax_baked.CdejaxBakedModel",
    },
}
_OF_THE_UNBAKED = ("name", "scores", "evaluation", "code")
_MODULES = (
    ("", "sentence_transformers_cdejax_baked.BakedTransformer"),
    ("1_Normalize", "sentence_transformers.models.Normalize"),
)


def bake(
    model: str | Path,
    context: Context,
    folder: str | Path,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """`export_baked` for the folder of a contextual export.

    What the export's model card was told is told again, but for its name and scores,
    and `metadata` on top. The vectors are compared with sentence-transformers' where it
    is installed, before the folder appears.
    """
    path = resolve_folder(model)
    check_outside(folder, path)
    told = read_marker(path).get("metadata", {})
    told = {k: v for k, v in told.items() if k not in _OF_THE_UNBAKED}
    embedder = load(path, dtype="float32")
    return export_baked(
        embedder,
        context,
        folder,
        metadata=told | dict(metadata or {}),
        check=lambda partial: check_sentence_transformers(partial, None),
    )


def export_baked(
    embedder: Embedder,
    context: Context | None,
    folder: str | Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Writes a contextual model with a context folded in.

    `SentenceTransformer(folder, trust_remote_code=True).encode(texts)` then needs no
    second argument, and `cdejax.load(folder).encode(texts)` no context. Neither the
    first stage nor the soft tokens' projection is written: half the size. Embeddings
    are those of the model with that context, of length 1.

    The folder brings code of its own: no stock module of sentence-transformers puts
    constant vectors, at positions of their own and outside the pooling, in front of
    every text.

    Args:
      embedder: of a contextual model, or of a baked one.
      context: made by this embedder's weights; None for a baked one, which keeps its
        own.
      folder: where to write, as for `export_model`.
      metadata: for the model card, see `model_card`.
      check: called with the complete folder before it appears, as for `export_model`.

    Returns:
      The folder.

    Raises:
      ValueError: the embedder is of a biencoder, the context is missing, not wanted or
        another model's, or the folder holds something else or cannot be written.
    """
    baked, context = _baked(embedder, context)
    described: dict[str, Any] = jsonable(metadata or {})
    check_settings(baked, embedder.prompts, embedder.max_length)

    def write(partial: Path) -> None:
        vocabulary = baked.text_encoder.config.vocab_size
        with tempfile.TemporaryDirectory() as scratch:
            embedder.tokenizer.save(scratch)
            write_tokenizer(scratch, partial, embedder.max_length, vocabulary)
        context.write(partial)
        config = contextual_config(baked, embedder.max_length, None, described)
        info = read_json(partial / INFO)
        tensors = to_state_dict(baked)
        del tensors["second_stage_model.context"]  # context.safetensors has it
        config |= {**_CLASSES, "baked_context": info}
        write_contextual(partial, config, tensors, _CODE)
        _write_modules(partial, embedder)
        card = model_card(
            Path(folder).name,
            prompts=embedder.prompts,
            max_length=embedder.max_length,
            context_size=baked.config.context_size,
            metadata=described,
            baked=info,
        )
        (partial / CARD).write_text(card, encoding="utf-8")

    return publish(folder, type(baked).__name__, described, write, check)


def _baked(embedder: Embedder, context: Context | None) -> tuple[BakedEncoder, Context]:
    """The model with the context, and the context without masked places."""
    model = embedder.model
    if model.kind == "baked":
        embedder.check_context(context)
        assert embedder.baked is not None
        return model, embedder.baked
    checked = embedder.check_context(context)
    if model.kind == "biencoder":
        raise ValueError(f"{embedder.name} is a biencoder; there is nothing to bake")
    assert checked is not None
    context = checked.compact()
    return BakedEncoder(model, context.vectors), context


def _write_modules(folder: Path, embedder: Embedder) -> None:
    """modules.json and the settings of sentence-transformers."""
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(_MODULES)
    ]
    write_json(folder / "modules.json", modules)
    settings = sentence_transformers_config(
        embedder.prompts,
        stock=False,
        default_prompt_name=embedder.default_prompt_name,
        similarity_fn_name=embedder.similarity_fn_name,
        truncate_dim=embedder.truncate_dim,
    )
    write_json(folder / "config_sentence_transformers.json", settings)
