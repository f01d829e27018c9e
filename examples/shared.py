"""What the examples share: a corpus that is there anyway, and one context per store.

python examples/shared.py > corpus.jsonl
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cdejax

MODULES = ("shutil", "textwrap", "random", "statistics", "calendar", "zipfile")


class Document(NamedTuple):
    """A function or class of Python's standard library."""

    name: str
    text: str
    """First paragraph of its docstring, on one line."""


def corpus(modules: tuple[str, ...] = MODULES) -> list[Document]:
    """Docstrings of the installed standard library; the files are read, not run."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, str] = {}
    for module in modules:
        path = root / f"{module}.py"
        path = path if path.is_file() else root / module / "__init__.py"
        for name, text in _described(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(text, module + name)
    return [Document(name, text) for text, name in found.items()]


def _described(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Name and description of everything public, methods below their class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if text:
                yield f".{node.name}", text
        if isinstance(node, ast.ClassDef):
            yield from (
                (f".{node.name}{name}", text) for name, text in _described(node)
            )


def arguments(description: str | None) -> argparse.Namespace:
    """MODEL STORE QUERY … [--context FOLDER]."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder that cdejax.load reads")
    parser.add_argument("store", type=Path, help="folder of the store; made if missing")
    parser.add_argument("query", nargs="+", help="what to look for")
    parser.add_argument(
        "--context", help="folder of a saved context (default: the store's own)"
    )
    return parser.parse_args()


def find_context(
    embedder: cdejax.Embedder, store: Path, given: str | None, texts: list[str]
) -> cdejax.Context | None:
    """The context given, else the one kept in the store, else a new one, kept there.

    None for a biencoder, which reads no context.

    Raises:
      ValueError: the context given is another model's, or not wanted.
    """
    if embedder.context_size is None and not given:
        return None
    if not given and (store / "context").is_dir():
        return cdejax.Context.load(store / "context")
    context = cdejax.Context.load(given) if given else embedder.context(texts, seed=0)
    embedder.check_context(context)  # before it is kept
    if not (store / "context").exists():
        context.save(store / "context")
    return context


def provenance(
    embedder: cdejax.Embedder, context: cdejax.Context | None
) -> dict[str, str]:
    """What the vectors of a store depend on; kept with them."""
    settings = [embedder.prompts, embedder.max_length, embedder.truncate_dim]
    return {
        "model": embedder.hash,
        "context": context.hash if context else "none",
        "prompts, length and size": json.dumps(settings, sort_keys=True),
    }


def refuse_others(stored: dict[str, str], asked: dict[str, str]) -> None:
    """Vectors of another model or context are not comparable: searching them is wrong.

    Raises:
      SystemExit: they are of another one, with what to do.
    """
    for what, value in asked.items():
        if stored.get(what) != value:
            raise SystemExit(
                f"the store's vectors were made with {what} {stored.get(what)}, not "
                f"{value}; search with the store's own, or index into another folder"
            )


if __name__ == "__main__":
    for document in corpus():
        print(json.dumps({"_id": document.name, "text": document.text}))
