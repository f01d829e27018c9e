"""YAML with line numbers, so that a wrong value can be named with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

Keys = tuple[str, ...]
"""Where a value stands: the keys that lead to it (list items by number)."""


_TYPES = ("map", "seq", "str", "int", "float", "bool", "null")
_TAGS = {f"tag:yaml.org,2002:{name}" for name in _TYPES}


class _Loader(yaml.SafeLoader):
    """Safe loader that reads `2e-5` as a number (YAML 1.2 does) and dates as text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parse_value(text: str) -> Any:
    """One value as YAML reads it: `256`, `2e-5`, `true`, `null`, `[a, b]` or text."""
    return yaml.load(text, _Loader)


def read_yaml(path: str | Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Reads a YAML file whose top level is a mapping, and the line of each value.

    Raises:
      ValueError: no such file, not UTF-8, not YAML, empty, not a mapping, or a key that
        stands twice in one mapping; with the file and, where it has one, the line.
    """
    text = _read_text(Path(path))
    lines: dict[Keys, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ValueError(
                f"{path}: the file is empty, a recipe needs sources and a model"
            )
        if not isinstance(node, yaml.MappingNode):
            raise ValueError(
                f"{path}:{_line(node)}: the top level must be a mapping "
                "(lines of `key: value`)"
            )
        return _plain(loader, node, (), lines, str(path)), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None


def _plain(
    loader: _Loader, node: yaml.Node, keys: Keys, lines: dict[Keys, int], path: str
) -> Any:
    """The node's value; fills `lines` with where each part of it stands."""
    lines[keys] = _line(node)
    if node.tag not in _TAGS:
        raise ValueError(f"{path}:{_line(node)}: not YAML: unknown tag {node.tag!r}")
    if isinstance(node, yaml.MappingNode):
        value: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, _line(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(f"{path}:{line}: a key must be plain text")
            if key in value:
                first = lines[*keys, key]
                dotted = ".".join((*keys, key))
                raise ValueError(
                    f"{path}:{line}: `{dotted}` stands twice (first on line {first}); "
                    "keep one"
                )
            value[key] = _plain(loader, value_node, (*keys, key), lines, path)
            lines[*keys, key] = line
        return value
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_plain(loader, n, (*keys, str(i)), lines, path) for i, n in items]
    return loader.construct_object(node)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
