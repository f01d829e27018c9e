"""The options of the commands; each field's docstring is its help text."""

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
    """Change a setting, e.g. plan.batch_size=256. Overrides the file and variants."""
    variant: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only this variant of the recipe (default: all)."""

    def load(self) -> Config:
        """The validated recipe, reduced to the requested variant if one is given.

        Raises:
          ValueError: the recipe, a changed setting or the variant's name is invalid.
        """
        from cdejax.config.load import load_config, only_variant, parse_overrides

        config = load_config(self.config, parse_overrides(self.set))
        return config if self.variant is None else only_variant(config, self.variant)

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments passed to the stage besides the recipe."""
        return {}


@dataclass(frozen=True)
class RunOptions(RecipeOptions):
    """A recipe to run whole."""

    dry_run: bool = False
    """Only report what would happen: rows, drops, steps, padding, memory, FLOPs."""


@dataclass(frozen=True)
class ExportOptions(RecipeOptions):
    """A recipe whose models are to be exported."""

    format: Literal["huggingface", "onnx"] = "huggingface"
    """onnx: add checked ONNX graphs to each Hugging Face folder (biencoders)."""
    int8: bool = False
    """With --format onnx: also write an 8-bit graph and report how close it comes."""

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for the stage; ValueError if options contradict."""
        if self.format == "onnx":
            return {"onnx": True, "int8": self.int8}
        if self.int8:
            raise ValueError("--int8 is for ONNX graphs: add --format onnx")
        return {}


@dataclass(frozen=True)
class OnnxOptions:
    """A model folder to add ONNX graphs to."""

    model: str
    """Model folder: a cdejax export or a Hugging Face folder with one encoder."""
    output: File = None
    """Copy the model folder here and add the graphs to the copy, not the original."""
    int8: bool = False
    """Also write an 8-bit graph (dynamic quantisation); report how close it comes."""
    overwrite: bool = False
    """Replace existing graphs."""


@dataclass(frozen=True)
class ContextOptions:
    """A corpus to choose and save a context from."""

    model: str
    """Folder of a contextual model."""
    texts: Path
    """The corpus: a .txt file, one document per line, or .jsonl with `text`."""
    output: Path
    """The folder to write."""
    size: int | None = None
    """Number of texts to choose (default: as many as the model was trained with)."""
    seed: int = 0
    """Seed of all random choices."""
    method: Literal["random", "kmeans++", "medoids"] = "random"
    """kmeans++: texts far apart; medoids: the medoid of each of `size` clusters."""
    candidates: int | None = None
    """Texts that kmeans++ and medoids choose from (default: 8 per text to choose)."""
    fill: Literal["mask", "resample"] = "mask"
    """Unfilled context slots: mask them in attention, or resample texts."""
    batch_size: int = 128
    """Number of texts encoded at once."""
    overwrite: bool = False
    """Replace an existing context."""


@dataclass(frozen=True)
class BakeOptions:
    """A contextual model and a context to fold into it."""

    model: str
    """Folder of a contextual model: a cdejax export."""
    context: Path
    """Saved context of this model, from `cdejax context`."""
    output: Path
    """The folder to write."""


@dataclass(frozen=True)
class EncodeOptions:
    """Texts to encode as vectors."""

    model: str
    """Model folder: an export of ours or a Hugging Face folder."""
    texts: Path
    """A .txt file, one text per line, or a .jsonl file with `text`."""
    output: Path
    """The .npy file to write: float32, one row per text, in the same order."""
    kind: Literal["query", "document"] = "document"
    """Kind of the texts, which determines their prompt."""
    context: File = None
    """Contextual models: a .txt or .jsonl of the corpus, or a saved context."""
    seed: int = 0
    """Contextual models: seed of the sample that becomes the context."""
    batch_size: int = 128
    """Number of texts encoded at once."""
    overwrite: bool = False
    """Replace the output if it exists."""


@dataclass(frozen=True)
class SearchOptions:
    """Documents to search and queries to rank them for."""

    model: str
    """Model folder: an export of ours or a Hugging Face folder."""
    documents: Path
    """A .txt file, one document per line, or .jsonl with `text` (`title`, `_id`)."""
    query: Repeatable = ()
    """A query. Repeat the option for several."""
    queries: File = None
    """Queries from a file, .txt or .jsonl like the documents."""
    k: int = 10
    """Number of documents per query."""
    context: File = None
    """Contextual models: take the context from here, not from the documents."""
    seed: int = 0
    """Contextual models: seed of the sample that becomes the context."""
    batch_size: int = 128
    """Number of texts encoded at once."""
    output: File = None
    """Write all results to this file, as JSON lines."""
    overwrite: bool = False
    """Replace the output if it exists."""


@dataclass(frozen=True)
class LaunchOptions:
    """Processes to start on this host."""

    processes: int = 1
    """Number of processes on this host; the same on every host."""
    devices: int | None = None
    """Devices per process: its share of the host's GPUs, or the number of simulated CPU
    devices (default: all of the host's, which suits one process per host)."""
    hosts: int = 1
    """Number of hosts of the run; each starts its own processes."""
    host: int = 0
    """Number of this host, from 0."""
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """HOST:PORT of process 0 on host 0 (default with one host: a free port)."""
    heartbeat: int = HEARTBEAT_SECONDS
    """Seconds of silence after which a process counts as dead."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()
    """The command to launch, with its arguments."""
