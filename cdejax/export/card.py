"""The model card (README.md) of an exported folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from cdejax.data.sources import hub_dataset
from cdejax.export.card_texts import BAKED, BIENCODER, CONTEXT, CONTEXTUAL, LIMITS
from cdejax.export.origin import code_origin

_KNOWN = ("name", "base_model", "data", "recipe", "evaluation", "scores", "license",
          "language", "code")  # fmt: skip
_EVALUATION = "cdejax evaluate --config RECIPE.yaml"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_TITLES = {
    BIENCODER: "Text encoder",
    CONTEXTUAL: "Contextual document encoder",
    BAKED: "Contextual document encoder with its context baked in",
}


def model_card(
    folder_name: str,
    *,
    prompts: Mapping[str, str],
    max_length: int,
    context_size: int | None,
    metadata: Mapping[str, Any],
    baked: Mapping[str, Any] | None = None,
) -> str:
    """Markdown with front matter: use, context, origin, evaluation, limits, recipe.

    Args:
      folder_name: the model's name, unless the metadata has one.
      prompts: text before every `query`, `document` and other kind of text.
      max_length: longest text in tokens.
      context_size: that of a contextual encoder, None for a biencoder.
      metadata: may hold `name`, `base_model`, `data` (a list of names, or of mappings
        with `path` and `license`), `recipe` (a recipe or text), `evaluation` (a
        command), `scores` (a mapping or text), `license`, `language` and `code`; other
        keys are listed as they are.
      baked: of the context that is baked in: `Context.info`.
    """
    name = str(metadata.get("name", folder_name))
    contextual = CONTEXTUAL if baked is None else BAKED
    usage = BIENCODER if context_size is None else contextual
    sections = {
        "Use": usage.format(name=name),
        "Context": _context(context_size, baked),
        "Origin": _origin(metadata, prompts, max_length),
        "Evaluation": _evaluation(metadata),
        "Limits": LIMITS.format(
            max_length=max_length, language=metadata.get("language", "not stated")
        ),
        "Recipe": _recipe(metadata.get("recipe")),
    }
    parts = [
        _front_matter(context_size is not None, metadata),
        f"# {name}\n\n{_TITLES[usage]}, trained with cdejax.",
        *(f"## {title}\n\n{text}" for title, text in sections.items() if text),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(contextual: bool, metadata: Mapping[str, Any]) -> str:
    """What the hub reads: only names that it can know, and a language if stated."""
    tags = ["sentence-transformers", "feature-extraction", "sentence-similarity"]
    tags += ["contextual-document-embeddings"] if contextual else []
    values: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
    }
    values |= {k: metadata[k] for k in ("license", "language") if k in metadata}
    base = str(metadata.get("base_model", "")).removeprefix("hf:")
    if is_hub_name(base):
        values["base_model"] = base
    if datasets := [n for n in map(_hub_data, _sources(metadata)) if n is not None]:
        values["datasets"] = list(dict.fromkeys(datasets))
    text = yaml.safe_dump(values | {"tags": tags}, sort_keys=False, allow_unicode=True)
    return f"---\n{text}---"


def is_hub_name(name: str) -> bool:
    """Whether a name is OWNER/NAME, as on the hub, and no folder of this machine."""
    return bool(_HUB_NAME.fullmatch(name)) and not Path(name).exists()


def _hub_data(source: Mapping[str, Any]) -> str | None:
    """OWNER/DATASET of a source that is a dataset of the hub."""
    name = hub_dataset(str(source["path"]))
    return name if name is not None and is_hub_name(name) else None


def _sources(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    data = metadata.get("data", [])
    data = [data] if isinstance(data, (str, Mapping)) else data
    return [d if isinstance(d, Mapping) else {"path": d} for d in data]


def _context(size: int | None, baked: Mapping[str, Any] | None) -> str:
    if size is None:
        return ""
    if baked is None:
        return CONTEXT.format(size=size)
    rows = _bullets(baked.items())
    return (
        "This context is part of the model and cannot be changed; "
        f"`context.safetensors` and `context.json` hold it.\n\n{rows}"
    )


def _origin(
    metadata: Mapping[str, Any], prompts: Mapping[str, str], max_length: int
) -> str:
    data = [
        f"{source['path']} (licence: {source.get('license') or 'not stated'})"
        for source in _sources(metadata)
    ]
    rows = [
        ("Base model", metadata.get("base_model", "not stated")),
        ("Training data", "; ".join(data) or "not stated"),
        ("Licence of the model", metadata.get("license", "not stated")),
        ("Code", metadata.get("code") or code_origin()),
        ("Recipe", "below" if metadata.get("recipe") else "not stated"),
        ("Longest text", f"{max_length} tokens; longer texts are cut"),
        ("Prompts", ", ".join(f"{key}: {_code(p)}" for key, p in prompts.items())),
        *((key, metadata[key]) for key in metadata if key not in _KNOWN),
    ]
    return _bullets(rows)


def _evaluation(metadata: Mapping[str, Any]) -> str:
    scores = metadata.get("scores")
    said = "Not evaluated."
    if isinstance(scores, Mapping):
        said = "| collection | score |\n| --- | --- |\n" + "\n".join(
            f"| {name} | {score} |" for name, score in scores.items()
        )
    elif scores:
        said = str(scores)
    where = " (`recipe.yaml` is the recipe below)" if metadata.get("recipe") else ""
    command = metadata.get("evaluation", _EVALUATION)
    how = "Evaluated by" if scores else "To evaluate it"
    return f"{said}\n\n{how}{where}:\n\n```\n{command}\n```"


def _recipe(recipe: Any) -> str:
    if not recipe or isinstance(recipe, str):
        return recipe or ""
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    return f"```yaml\n{text.strip()}\n```"


def _bullets(rows: Iterable[tuple[str, Any]]) -> str:
    return "\n".join(f"- {key}: {_text(value)}" for key, value in rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
