"""The options of the commands; each field's text is its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from cdejax.runtime.processes import HEARTBEAT_SECONDS

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
    """Change a setting, e.g. plan.batch_size=256. It wins over file and variants."""
    variant: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only this variant of the recipe, not all that it names."""

    def load(self) -> Config:
        """The checked recipe, narrowed to the variant asked for.

        Raises:
          ValueError: the recipe, a change or the variant's name is wrong.
        """
        from cdejax.config.load import load_config, only_variant, parse_overrides

        config = load_config(self.config, parse_overrides(self.set))
        return config if self.variant is None else only_variant(config, self.variant)

    def keywords(self) -> dict[str, Any]:
        """What the stage is told beside the recipe."""
        return {}


@dataclass(frozen=True)
class RunOptions(RecipeOptions):
    """A recipe to run whole."""

    dry_run: bool = False
    """Only say what would happen: rows, drops, steps, padding, memory, FLOPs."""


@dataclass(frozen=True)
class ExportOptions(RecipeOptions):
    """A recipe whose models are exported."""

    format: Literal["huggingface", "onnx"] = "huggingface"
    """onnx: add checked ONNX graphs to each Hugging Face folder (biencoders)."""
    int8: bool = False
    """With --format onnx: also an 8-bit graph, and how close it comes."""

    def keywords(self) -> dict[str, Any]:
        """What the stage is told beside the recipe; ValueError for a contradiction."""
        if self.format == "onnx":
            return {"onnx": True, "int8": self.int8}
        if self.int8:
            raise ValueError("--int8 is for ONNX graphs: add --format onnx")
        return {}


@dataclass(frozen=True)
class OnnxOptions:
    """A model folder to which ONNX graphs are added."""

    model: str
    """Model folder: an export of ours or a Hugging Face folder with one encoder."""
    output: File = None
    """Leave the model's folder alone: copy it here and add the graphs to the copy."""
    int8: bool = False
    """Also write an 8-bit graph (dynamic quantisation), and say how close it comes."""
    overwrite: bool = False
    """Replace graphs that are there."""


@dataclass(frozen=True)
class ContextOptions:
    """A corpus whose context is to be kept."""

    model: str
    """Folder of a contextual model."""
    texts: Path
    """The corpus: a .txt file, one document a line, or .jsonl with `text`."""
    output: Path
    """The folder to write."""
    size: int | None = None
    """Texts to choose (default: as many as the model was trained with)."""
    seed: int = 0
    """Seed of everything drawn."""
    method: Literal["random", "kmeans++", "medoids"] = "random"
    """kmeans++: texts far apart; medoids: the middle of each of as many clusters."""
    candidates: int | None = None
    """Texts that kmeans++ and medoids look at (default: 8 for each to choose)."""
    fill: Literal["mask", "resample"] = "mask"
    """Places without a text: keep them out of attention, or draw texts again."""
    batch_size: int = 128
    """Texts encoded at once."""
    overwrite: bool = False
    """Replace a context that is there."""


@dataclass(frozen=True)
class BakeOptions:
    """A contextual model and a context, to become one model."""

    model: str
    """Folder of a contextual model: an export of ours."""
    context: Path
    """Saved context of this model, from `cdejax context`."""
    output: Path
    """The folder to write."""


@dataclass(frozen=True)
class EncodeOptions:
    """Texts to vectors."""

    model: str
    """Model folder: an export of ours or a Hugging Face folder."""
    texts: Path
    """A .txt file, one text a line, or a .jsonl file with `text`."""
    output: Path
    """The .npy file to write: float32, one row a text, in their order."""
    kind: Literal["query", "document"] = "document"
    """What the texts are: their prompt depends on it."""
    context: File = None
    """Contextual models: a .txt or .jsonl of the corpus, or a saved context."""
    seed: int = 0
    """Contextual models: seed of the sample that becomes the context."""
    batch_size: int = 128
    """Texts encoded at once."""
    overwrite: bool = False
    """Replace the output if it exists."""


@dataclass(frozen=True)
class SearchOptions:
    """Documents and queries to ranked results."""

    model: str
    """Model folder: an export of ours or a Hugging Face folder."""
    documents: Path
    """A .txt file, one document a line, or .jsonl with `text` (`title`, `_id`)."""
    query: Repeatable = ()
    """A query. Give several by repeating the option."""
    queries: File = None
    """Queries from a file, .txt or .jsonl like the documents."""
    k: int = 10
    """Documents for each query."""
    context: File = None
    """Contextual models: read the context from here, not from the documents."""
    seed: int = 0
    """Contextual models: seed of the sample that becomes the context."""
    batch_size: int = 128
    """Texts encoded at once."""
    output: File = None
    """Write all results to this file, as JSON lines."""
    overwrite: bool = False
    """Replace the output if it exists."""


@dataclass(frozen=True)
class LaunchOptions:
    """Processes to start on this host."""

    processes: int = 1
    """Processes on this host, as many on each."""
    devices: int | None = None
    """Devices of each: its share of the host's GPUs, or so many simulated on CPU
    (default: all of the host's, which suits one process a host)."""
    hosts: int = 1
    """Hosts of the run; each starts its own processes."""
    host: int = 0
    """Number of this host, from 0."""
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """HOST:PORT of process 0, on host 0 (default with one host: a free port)."""
    heartbeat: int = HEARTBEAT_SECONDS
    """Seconds of silence after which a process counts as dead."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()
    """The command to launch, with its arguments."""
