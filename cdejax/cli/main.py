"""The command line: `cdejax COMMAND --config recipe.yaml`, `cdejax encode`, `search`.

Heavy modules are imported only when a command runs, so help and errors appear quickly.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cdejax.cli.options import (
    BakeOptions,
    ContextOptions,
    EncodeOptions,
    ExportOptions,
    LaunchOptions,
    OnnxOptions,
    RecipeOptions,
    RunOptions,
    SearchOptions,
)
from cdejax.runtime import processes


class Command(NamedTuple):
    """Options, function and help text of a command."""

    options: type
    """Dataclass with its options; for a `RecipeOptions`, the recipe is passed on."""
    function: str
    """MODULE:NAME of the function that is called with them."""
    summary: str
    """Input and output, in one sentence."""
    detail: str
    """Further explanation for new users."""
    example: str
    """Example arguments."""
    everywhere: bool = False
    """Whether all processes call the function; otherwise only process 0 does."""


_WIDTH = 112
"""Width, in columns, of output to a file or a pipe."""
_HANDLER = logging.StreamHandler()
_RUN = "cdejax.recipe.run"
_RECIPE = "--config configs/quickstart.yaml"

COMMANDS = {
    "run": Command(
        RunOptions,
        f"{_RUN}:run",
        "All stages: a recipe in; trained models, figures and a report out.",
        "Stages whose inputs have not changed are not run again.",
        f"{_RECIPE} --dry-run",
        everywhere=True,
    ),
    "pairs": Command(
        RecipeOptions,
        f"{_RUN}:run_pairs",
        "Read and check: sources in; one table of pairs out.",
        "Bad rows are reported by file and line. Documents are split into a training "
        "and a held-out part as the recipe says.",
        _RECIPE,
    ),
    "tfds": Command(
        RecipeOptions,
        f"{_RUN}:run_tfds",
        "Write as a TensorFlow dataset: sources in; array_record files out.",
        "`tfds.builder_from_directory` reads the folder, and so does a source "
        "`tfds:FOLDER/pairs/1.0.0`. TensorFlow is not needed.",
        _RECIPE,
    ),
    "tokenize": Command(
        RecipeOptions,
        f"{_RUN}:run_tokens",
        "Tokenise: pairs in; the encoder's token ids out.",
        "Resumes where it stopped if killed.",
        f"{_RECIPE} --set tokens.document.max_length=128",
    ),
    "embed": Command(
        RecipeOptions,
        f"{_RUN}:run_vectors",
        "Surrogate vectors: pairs in; one vector for each text out.",
        "They decide which texts are neighbours and which are false negatives. They "
        "come from TF-IDF, from a trained encoder or from your own .npy files.",
        f"{_RECIPE} --set vectors.method=tfidf",
        everywhere=True,
    ),
    "cluster": Command(
        RecipeOptions,
        f"{_RUN}:run_clusters",
        "Cluster: surrogate vectors in; the cluster of each pair out.",
        "Spherical k-means within each domain.",
        f"{_RECIPE} --set clusters.cluster_size=32",
    ),
    "pack": Command(
        RecipeOptions,
        f"{_RUN}:run_plan",
        "Pack: clusters in; the batches of every epoch out.",
        "A batch never mixes domains; what does not fill a batch is counted.",
        f"{_RECIPE} --set plan.batch_size=256",
    ),
    "train": Command(
        RecipeOptions,
        f"{_RUN}:run_train",
        "Train: batches in; a checkpoint out.",
        "Missing earlier stages run first. Resumes from the last checkpoint if killed.",
        f"{_RECIPE} --set training.learning_rate=1e-5",
        everywhere=True,
    ),
    "evaluate": Command(
        RecipeOptions,
        "cdejax.recipe.scores:evaluate",
        "Evaluate: a checkpoint in; retrieval figures beside BM25 out.",
        "On held-out pairs and BEIR folders, as the recipe says; `report` draws them.",
        f"{_RECIPE} --set evaluation.collections='[data/scifact]'",
    ),
    "export": Command(
        ExportOptions,
        "cdejax.recipe.export:export",
        "Export: a checkpoint in; a Hugging Face folder out.",
        "sentence-transformers, `cdejax encode` and `cdejax search` load the folder. "
        "With `--format onnx` it also holds ONNX graphs, as from `cdejax onnx`.",
        _RECIPE,
    ),
    "report": Command(
        RecipeOptions,
        "cdejax.recipe.scores:report",
        "Report: all figures of a run in; one table with pictures out.",
        "Only what has not been evaluated yet is computed.",
        _RECIPE,
    ),
    "onnx": Command(
        OnnxOptions,
        "cdejax.cli.model_commands:onnx",
        "ONNX: a model folder in; onnx/model.onnx beside its other files out.",
        "Token ids and mask in, finished embeddings out, for any batch and length. The "
        "graph is run by onnxruntime and compared with the model before it is kept.",
        "--model my-model --int8",
    ),
    "context": Command(
        ContextOptions,
        "cdejax.cli.model_commands:make_context",
        "Context: a contextual model and its corpus in; a saved context out.",
        "Keep it beside the index: documents and queries need the same one. "
        "`encode` and `search` take it by `--context`.",
        "--model my-model --texts corpus.jsonl --output my-context --method medoids",
    ),
    "bake": Command(
        BakeOptions,
        "cdejax.cli.model_commands:bake",
        "Bake: a contextual model and a context in; a model that needs no context out.",
        "Programs that call `SentenceTransformer(folder).encode(texts)` use it as any "
        "other model; it is half as large.",
        "--model my-model --context my-context --output my-baked-model",
    ),
    "encode": Command(
        EncodeOptions,
        "cdejax.cli.model_commands:encode",
        "Encode: an exported model and texts in; one vector for each text out.",
        "",
        "--model my-model --texts docs.txt --output docs.npy",
    ),
    "search": Command(
        SearchOptions,
        "cdejax.cli.model_commands:search",
        "Search: an exported model, documents and queries in; ranked documents out.",
        "A contextual model reads its context from the documents, unless given one.",
        "--model my-model --documents docs.jsonl --query 'how to read a file'",
    ),
    "launch": Command(
        LaunchOptions,
        "cdejax.cli.launch:launch",
        "Launch: a command in; its run in several processes out.",
        "Options of the launch come before the command, its own behind. If one process "
        "ends badly or freezes, all are ended and one line says why. With several "
        "hosts, start it on each, with the same --coordinator.",
        "--processes 2 train --config configs/quickstart.yaml",
        everywhere=True,
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; user errors end in a one-line message and exit code 2."""
    with processes.leave_in_order():
        _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> None:
    _log_to_stderr()
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            _overview()
        elif arguments[0] == "--version":
            Console().print(metadata.version("cdejax"), highlight=False)
        else:
            _show(_run(arguments[0], arguments[1:]))
    except ValueError as error:
        _fail(str(error))
    except BrokenPipeError:  # e.g. `cdejax search … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        from cdejax.storage.artifacts import explain_os_error

        _fail(explain_os_error(error))
    except KeyboardInterrupt as error:
        sys.stderr.write(f"cdejax: {str(error) or 'interrupted'}\n")
        raise SystemExit(getattr(error, "code", 130)) from None


def _run(name: str, arguments: Sequence[str]) -> Any:
    """Parses the command's options and calls its function."""
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(COMMANDS)}"
        raise ValueError(f"unknown command {name!r}; {hint}")
    command = COMMANDS[name]
    inner: Sequence[str] = ()
    if command.options is LaunchOptions:
        arguments, inner = _cut(arguments)
    options = tyro.cli(
        command.options,
        prog=f"cdejax {name}",
        description=_help(name, command),
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    function = command.function
    if isinstance(options, RunOptions) and options.dry_run:
        function = "cdejax.recipe.dry_run:dry_run"
    given, keywords = options, {}
    if isinstance(options, RecipeOptions):
        keywords, given = options.keywords(), options.load()
    module, _, attribute = function.partition(":")
    if isinstance(options, LaunchOptions):
        given = dataclasses.replace(options, command=tuple(inner))
    else:
        processes.join_processes()
        _log_among_others()

    def call() -> Any:
        return getattr(importlib.import_module(module), attribute)(given, **keywords)

    if not command.everywhere:
        return processes.main_only(name, call)
    result = call()
    return result if processes.is_main() else None


def _cut(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Splits the arguments before the command to launch from those that form it."""
    for index, argument in enumerate(arguments):
        if argument == "--":
            return arguments[:index], arguments[index + 1 :]
        if argument in COMMANDS:
            return arguments[:index], arguments[index:]
    return arguments, ()


def _help(name: str, command: Command) -> str:
    example = f"Example:\n  cdejax {name} {command.example}"
    return "\n\n".join(filter(None, (command.summary, command.detail, example)))


def _overview() -> None:
    """Prints one line per command, and where to find more help."""
    console = Console(highlight=False)
    console.print(
        "[bold]cdejax[/bold] trains and uses text embedding models in JAX, contextual "
        "ones included.\n\n"
        "  cdejax run --config RECIPE       train and compare what a recipe says\n"
        "  cdejax COMMAND --config RECIPE   one stage of it, with what it needs\n"
        "  cdejax COMMAND --help            options and an example\n"
    )
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(f"[bold]{name}[/bold]", escape(command.summary))
    console.print(table)
    console.print(
        "\nA recipe is a YAML file: see configs/. Any setting of it can be changed on "
        "the command line, for example [bold]--set plan.batch_size=256[/bold]."
    )


def _show(result: Any) -> None:
    """Prints what a command returns: a folder, a text or a table."""
    if isinstance(result, (str, Path)):
        Console(soft_wrap=True).print(str(result), markup=False, highlight=False)
    elif result is not None:
        wide = None if sys.stdout.isatty() else _WIDTH
        Console(width=wide).print(result)


def _log_to_stderr() -> None:
    """Shows the package's log messages (truncated texts, chosen kernels) on stderr."""
    logger = logging.getLogger("cdejax")
    if not logger.handlers or _HANDLER in logger.handlers:
        _HANDLER.stream = sys.stderr  # a caller may have closed and replaced it
        _HANDLER.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(_HANDLER)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # root handlers of other libraries would repeat it


def _log_among_others() -> None:
    """Logs progress on process 0 only; other processes log warnings and errors."""
    if not processes.is_main():
        logger = logging.getLogger("cdejax")
        logger.setLevel(logging.WARNING)
        told = logging.Formatter(f"{processes.log_prefix()}%(name)s: %(message)s")
        for handler in logger.handlers:
            handler.setFormatter(told)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"cdejax: error: {processes.log_prefix()}{message}\n")
    raise SystemExit(2)
