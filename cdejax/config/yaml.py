"""Reads YAML with line numbers, so that errors can name the line of a value.

Recipes are small: size, nesting and the number of values are limited, which also stops
aliases from multiplying.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
import yaml.composer
import yaml.reader

from cdejax.storage.guarded import MAX_DEPTH, MAX_DIGITS, read_text

Keys = tuple[str, ...]
"""Path to a value: the keys that lead to it (indices for list items)."""

MAX_BYTES = 1 << 20
"""Maximum size of a recipe in bytes."""
MAX_VALUES = 100_000
"""Maximum number of values of a recipe, counting an alias each time it is used."""
MAX_KEY = 200
"""Maximum length of a key in characters."""
_TYPES = {
    "map": "mapping",
    "seq": "list",
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "truth value (true or false)",
    "null": "null",
}
_TAGS = {f"tag:yaml.org,2002:{name}": what for name, what in _TYPES.items()}
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that neither file names nor texts may contain."""


class _Loader(yaml.SafeLoader):
    """Safe loader that reads `2e-5` as a number, as YAML 1.2, and dates as text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes a node recursively, up to `MAX_DEPTH` levels."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                problem=f"nested more than {MAX_DEPTH} levels deep",
                problem_mark=self.peek_event().start_mark,
            )
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_value(text: str) -> Any:
    """Parses one YAML value: `256`, `2e-5`, `true`, `null`, `[a, b]` or text.

    Raises:
      ValueError: not YAML, or beyond the limits of a recipe; the message is the reason.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} characters")
    try:
        loader, node = _compose(text)
        return None if node is None else _Reader(loader).plain(node, ())
    except _Bad as error:
        raise ValueError(error.reason) from None


def read_yaml(path: str | Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Reads a YAML file whose top level is a mapping, with the line of each value.

    Raises:
      ValueError: the file is missing, empty, or not UTF-8, YAML or a mapping; a mapping
        has a key twice; or a limit is exceeded (bytes, levels, values). Names the file
        and, if it is known, the line.
    """
    text = read_text(path, MAX_BYTES)
    try:
        loader, node = _compose(text)
        if node is None:
            raise _Bad(None, "the file is empty, a recipe needs sources and a model")
        if not isinstance(node, yaml.MappingNode):
            raise _Bad(
                _line(node), "the top level must be a mapping (lines of `key: value`)"
            )
        reader = _Reader(loader)
        return reader.plain(node, ()), reader.lines
    except _Bad as error:
        line = "" if error.line is None else f":{error.line}"
        raise ValueError(f"{path}{line}: {error.reason}") from None


class _Bad(ValueError):
    """An error in a text, with its line."""

    def __init__(self, line: int | None, reason: str):
        super().__init__(reason)
        self.line, self.reason = line, reason


def _compose(text: str) -> tuple[_Loader, yaml.Node | None]:
    """Composes the text's only document; raises `_Bad` for errors of the parser."""
    loader = None
    try:
        loader = _Loader(text)
        return loader, loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Bad(mark and mark.line + 1, f"not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"the character {error.character:#06x}"
        raise _Bad(line, f"not YAML: {character} is not allowed") from None
    except (ValueError, OverflowError) as error:  # escapes such as "\UFFFFFFFF"
        raise _Bad(loader and loader.line + 1, f"not YAML: {error}") from None


@dataclass
class _Reader:
    """Converts nodes to plain values and records the line of each."""

    loader: _Loader
    lines: dict[Keys, int] = field(default_factory=dict)
    values: int = 0

    def plain(self, node: yaml.Node, keys: Keys) -> Any:
        """The node's value; records the lines of all its parts in `lines`."""
        line = self.lines[keys] = _line(node)
        self.values += 1
        if self.values > MAX_VALUES:
            raise _Bad(line, f"more than {MAX_VALUES:,} values, aliases spelled out")
        if len(keys) > MAX_DEPTH:
            raise _Bad(line, f"nested more than {MAX_DEPTH} levels deep")
        if node.tag not in _TAGS:
            raise _Bad(line, f"not YAML: unknown tag {node.tag!r:.80}")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self.plain(item, (*keys, str(i))) for i, item in items]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            key = _key(key_node)
            if key in value:
                first = self.lines[*keys, key]
                dotted = ".".join((*keys, key))
                raise _Bad(
                    line,
                    f"`{dotted}` appears twice (first on line {first}); keep one",
                )
            value[key] = self.plain(value_node, (*keys, key))
            self.lines[*keys, key] = line
        return value

    def _scalar(self, node: yaml.Node) -> Any:
        text, what = node.value, _TAGS[node.tag]
        if what != "text" and len(text) > MAX_DIGITS:
            long = f"{len(text):,} characters: {text[:20]}…"
            raise _Bad(_line(node), f"a {what} of {long}")
        if found := _NO_TEXT.search(text):
            raise _Bad(_line(node), f"the text holds {found.group()!a}; remove it")
        try:
            return self.loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):
            raise _Bad(_line(node), f"{text!r:.60} is no {what}") from None


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _Bad(_line(node), "a key must be plain text")
    try:
        return check_key(node.value)
    except ValueError as error:
        raise _Bad(_line(node), str(error)) from None


def check_key(key: str) -> str:
    """Returns the key; ValueError if it is too long, or has NUL or a surrogate."""
    if len(key) > MAX_KEY:
        raise ValueError(f"a key of {len(key):,} characters: {key[:20]!r}…")
    if found := _NO_TEXT.search(key):
        raise ValueError(f"a key holds {found.group()!a}; remove it")
    return key


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
