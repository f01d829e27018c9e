"""The model card (README.md) of an exported folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

_BIENCODER = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
documents = model.encode_document(["…"])
queries = model.encode_query(["…"])
scores = model.similarity(queries, documents)
```"""

_CONTEXTUAL = """\
The first stage embeds a sample of the corpus ({size} documents at most; fewer work).
The second stage embeds documents and queries in the light of that sample.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}", trust_remote_code=True)
context = model.encode(corpus_sample, prompt_name="document")
documents = model.encode_document(["…"], dataset_embeddings=context)
queries = model.encode_query(["…"], dataset_embeddings=context)
scores = model.similarity(queries, documents)
```

The two `.py` files of this folder hold the whole model in torch. They build on
transformers (5.17 or later) and sentence-transformers (5.7 or later), and fetch
nothing."""

_EVALUATION = "cdejax evaluate --config RECIPE.yaml"


def model_card(
    folder_name: str,
    *,
    prompts: Mapping[str, str],
    max_length: int,
    context_size: int | None,
    metadata: Mapping[str, Any],
) -> str:
    """Markdown with front matter: use, prompts, origin and how to evaluate.

    `context_size` is that of a contextual encoder, None for a biencoder.
    `metadata` may hold `name`, `base_model`, `data`, `recipe`, `evaluation` (a command)
    and `scores` (a mapping or text); other keys are listed as they are.
    """
    known = ("name", "base_model", "data", "recipe", "evaluation", "scores", "license")
    name = str(metadata.get("name", folder_name))
    contextual = context_size is not None
    recipe = metadata.get("recipe")
    usage = _CONTEXTUAL if contextual else _BIENCODER
    title = "Contextual document encoder" if contextual else "Text encoder"
    rows = [
        ("Base model", metadata.get("base_model", "not stated")),
        ("Training data", metadata.get("data", "not stated")),
        ("Recipe", "below" if recipe else "not stated"),
        ("Longest text", f"{max_length} tokens; longer texts are cut"),
        ("Prompts", ", ".join(f"{key}: {_code(p)}" for key, p in prompts.items())),
        *((key, _text(metadata[key])) for key in metadata if key not in known),
    ]
    parts = [
        _front_matter(contextual, metadata),
        f"# {name}\n\n{title}, trained with cdejax.",
        "## Use\n\n" + usage.format(name=name, size=context_size),
        "## Origin\n\n" + "\n".join(f"- {key}: {_text(value)}" for key, value in rows),
        "## Evaluation\n\n```\n"
        + str(metadata.get("evaluation", _EVALUATION))
        + "\n```",
    ]
    if "scores" in metadata:
        parts.append(_text(metadata["scores"]))
    if recipe:
        parts.append("## Recipe\n\n" + _recipe(recipe))
    return "\n\n".join(parts) + "\n"


def _front_matter(contextual: bool, metadata: Mapping[str, Any]) -> str:
    tags = ["sentence-transformers", "feature-extraction", "sentence-similarity"]
    tags += ["contextual-document-embeddings"] if contextual else []
    lines = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    if "license" in metadata:
        lines.append(f"license: {json.dumps(str(metadata['license']))}")
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _recipe(recipe: Any) -> str:
    if isinstance(recipe, str):
        return recipe
    return f"```yaml\n{yaml.safe_dump(recipe, sort_keys=False).strip()}\n```"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
