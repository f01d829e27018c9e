"""The options of the commands; each field's text is its help."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from cdejax.config import Config

Repeatable = tyro.conf.UseAppendAction[tuple[str, ...]]
File = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]


@dataclass(frozen=True)
class RecipeOptions:
    """A recipe, or a part of it."""

    config: Path
    """The recipe: a YAML file."""
    set: Repeatable = ()
    """Change one setting of the recipe, e.g. `--set plan.batch_size=256`. It wins over
    the file and over its variants; give it as often as needed."""
    variant: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only this variant of the recipe, not all that it names."""

    def load(self) -> Config:
        """The checked recipe, narrowed to the variant asked for.

        Raises:
          ValueError: the recipe, a change or the variant's name is wrong.
        """
        from cdejax.config_io import load_config, parse_overrides, variant

        config = load_config(self.config, parse_overrides(self.set))
        if self.variant is None:
            return config
        variant(config, self.variant)  # refuses an unknown one
        only = {self.variant: config.variants[self.variant]}
        return dataclasses.replace(config, variants=only)


@dataclass(frozen=True)
class RunOptions(RecipeOptions):
    """A recipe to run whole."""

    dry_run: bool = False
    """Only say what would happen: rows and drops by domain, negatives per query, steps,
    padding, compilations, memory and FLOPs."""


@dataclass(frozen=True)
class EncodeOptions:
    """Texts to vectors."""

    model: Path
    """Folder of the model: an export of ours or a Hugging Face folder."""
    texts: Path
    """Texts: .txt with one a line, or .jsonl with objects that have `text` (and
    `title`); either may be gzipped."""
    output: Path
    """The .npy file to write: float32, a row for each text in their order."""
    kind: Literal["query", "document"] = "document"
    """What the texts are; models may treat the two differently."""
    context: File = None
    """Contextual models: documents of the corpus (.txt or .jsonl), or a saved
    context."""
    seed: int = 0
    """Contextual models: which documents become the context."""
    batch_size: int = 64
    """Texts encoded at once."""
    overwrite: bool = False
    """Replace the output if it exists."""


@dataclass(frozen=True)
class SearchOptions:
    """Documents and queries to ranked results."""

    model: Path
    """Folder of the model: an export of ours or a Hugging Face folder."""
    documents: Path
    """The corpus: .txt with a document a line, or .jsonl with objects that have `text`
    (and `title`, `_id`); either may be gzipped."""
    query: Repeatable = ()
    """A query; may be given several times."""
    queries: File = None
    """Queries from a file, .txt or .jsonl like the documents."""
    k: int = 10
    """Documents for each query."""
    context: File = None
    """Contextual models: other documents (.txt or .jsonl), or a saved context (default:
    drawn from `documents`)."""
    seed: int = 0
    """Contextual models: which documents become the context."""
    batch_size: int = 64
    """Texts encoded at once."""
    output: File = None
    """Write all results as JSON lines, too."""
    overwrite: bool = False
    """Replace the output if it exists."""
