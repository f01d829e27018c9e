"""Loads recipes: from YAML and command-line overrides to `Config`."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from cdejax.config.recipe import Config
from cdejax.config.yaml import Keys, check_key, parse_value, read_yaml
from cdejax.storage.artifacts import jsonable
from cdejax.storage.guarded import MAX_DEPTH

_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
}
_SHARED_BY_VARIANTS = ("name", "output", "variants")


class _Bad(ValueError):
    """An invalid value with its keys; the caller adds the file."""

    def __init__(self, keys: Keys, reason: str):
        super().__init__(reason)
        self.keys = keys


def load_config(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Config:
    """Loads a recipe and validates it, including all variants.

    Args:
      source: a YAML file, or a nested mapping like one.
      overrides: nested mapping like the recipe, from the command line; takes precedence
        over the recipe and its variants.

    Raises:
      ValueError: the file is not a YAML mapping, a key is unknown (names the nearest
        known one) or repeated, or a value is missing, invalid or of the wrong type.
        Names file, line, dotted key, value and what would be right.
    """
    given = isinstance(source, Mapping)
    recipe, lines = (source, {}) if given else read_yaml(source)
    path = "recipe" if given else source
    overrides = dict(overrides or {})
    keys: Keys = ()
    try:
        _build(Config, overrides, (), checked=False)
        recipe = _merge(recipe, overrides)
        config = _build(Config, recipe, ())
        if not config.variants:
            _check_complete(config)
        for name in config.variants:
            keys = ("variants", name)
            changes = _drop_keys(overrides, _SHARED_BY_VARIANTS)
            config.variants[name] = _merge(config.variants[name], changes)
            _check_complete(_apply(config, name))
        return config
    except _Bad as error:
        place = _location(path, lines, overrides, keys, error.keys)
        dotted = ".".join(error.keys)
        inside = f" (variant {keys[1]})" if keys else ""
        raise ValueError(f"{place}: {dotted}{inside}: {error}") from None


def variant(config: Config, name: str) -> Config:
    """The recipe with one variant's overrides applied, without variants.

    Raises:
      ValueError: the variant is unknown (names the nearest known one), or its overrides
        are invalid.
    """
    if name not in config.variants:
        raise ValueError(f"variant {name!r}: {_unknown_name(name, config.variants)}")
    try:
        return _apply(config, name)
    except _Bad as error:
        dotted = ".".join(error.keys)
        raise ValueError(f"variant {name}: {dotted}: {error}") from None


def only_variant(config: Config, name: str) -> Config:
    """The recipe narrowed to one of its variants.

    Raises:
      ValueError: unknown variant (with the nearest known one).
    """
    if not config.variants:
        raise ValueError(f"variant {name!r}: the recipe has no variants; name none")
    variant(config, name)
    return dataclasses.replace(config, variants={name: config.variants[name]})


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Parses overrides `section.key=value`, with values in YAML, into a nested mapping.

    Raises:
      ValueError: there is no `=`, or key or value are invalid.
    """
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = name.strip().split(".")
        shown = f"--set {_excerpt(assignment)}"
        if not equals or not all(keys):
            raise ValueError(
                f"{shown}: write section.key=value, for example plan.batch_size=256"
            )
        if len(keys) > MAX_DEPTH:
            raise ValueError(f"{shown}: a key of {len(keys):,} parts; no setting is")
        try:
            for key in keys:
                check_key(key)
            value = parse_value(text)
        except ValueError as error:
            raise ValueError(f"{shown}: {error}; put quotes around text") from None
        for key in reversed(keys):
            value = {key: value}
        overrides = _merge(overrides, value)
    return overrides


def _location(
    path: str | Path, lines: dict[Keys, int], overrides: Any, variant: Keys, keys: Keys
) -> str:
    """Where a value comes from: the command line, or the file and the nearest line."""
    if _contains(overrides, keys):
        return "command line"
    for prefix in (variant, ()) if variant else ((),):
        for end in range(len(keys), 0, -1):
            if (*prefix, *keys[:end]) in lines:
                return f"{path}:{lines[*prefix, *keys[:end]]}"
    return str(path)


def _contains(value: Any, keys: Keys) -> bool:
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True


def _check_complete(config: Config) -> None:
    """Refuses a recipe without the settings that have no default."""
    if not config.data.sources:
        raise _Bad(("data", "sources"), "needed: a list of sources, each with a `path`")
    if not config.model.encoder:
        raise _Bad(
            ("model", "encoder"),
            "needed: the folder with the encoder and tokenizer to start from",
        )


def _apply(config: Config, name: str) -> Config:
    """Applies a variant's overrides."""
    changes = config.variants[name]
    for key in _SHARED_BY_VARIANTS:
        if key in changes:
            raise _Bad((key,), "is shared by all variants; set it at the top level")
    base = _drop_keys(jsonable(config), ("variants",))
    return _build(Config, _merge(base, changes), ())


def _drop_keys(mapping: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in names}


def _merge(base: Any, changes: Any) -> Any:
    """Merges mappings key by key; everything else, including lists, is replaced."""
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merge(base[key], value) if key in base else value
    return merged


def _build(cls: type, value: Any, keys: Keys, checked: bool = True) -> Any:
    """Makes a dataclass from plain values.

    With `checked=False` only names and types are checked, since a part of a recipe may
    be invalid alone, and nothing is returned.
    """
    if not isinstance(value, Mapping):
        raise _Bad(keys, f"must be a mapping of settings, not {_describe(value)}")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in value:
        if key not in names:
            raise _Bad((*keys, str(key)), _unknown_name(key, names))
    fields = {
        key: _convert(hints[key], part, (*keys, key), checked)
        for key, part in value.items()
    }
    if not checked:
        return None
    try:
        return cls(**fields)
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        raise _Bad((*keys, name), reason) from None
    except TypeError:
        missing = next(
            f.name
            for f in dataclasses.fields(cls)
            if f.name not in fields
            and f.default is f.default_factory is dataclasses.MISSING
        )
        raise _Bad((*keys, missing), "needed, it has no default") from None


def _convert(hint: Any, value: Any, keys: Keys, checked: bool) -> Any:
    """Checks a value against a field's type and converts it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):  # always `X | None` here
        inner = next(a for a in arguments if a is not type(None))
        return None if value is None else _convert(inner, value, keys, checked)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, keys, checked)
    if origin is Literal:
        if value not in arguments:
            raise _Bad(keys, _not_a_choice(value, arguments))
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _Bad(keys, _wrong_type(value, hint))
        items = enumerate(value)
        return tuple(
            _convert(arguments[0], v, (*keys, str(i)), checked) for i, v in items
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _Bad(keys, _wrong_type(value, hint))
        items = value.items()
        return {k: _convert(arguments[1], v, (*keys, k), checked) for k, v in items}
    return _scalar(hint, value, keys)


def _scalar(hint: type, value: Any, keys: Keys) -> Any:
    """Checks a number, text or truth value; integers are accepted as floats."""
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (
        isinstance(value, bool) and hint is not bool
    ):
        raise _Bad(keys, _wrong_type(value, hint))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _Bad(keys, f"{_describe(value)} is too large, it must fit into 64 bits")
    if hint is float and not math.isfinite(value):
        raise _Bad(keys, f"{value} is not finite, a finite number is needed")
    return float(value) if hint is float else value


def _wrong_type(value: Any, hint: Any) -> str:
    reason = f"must be {_type_name(hint)}, not {_describe(value)}"
    if hint is str and value is not None and not isinstance(value, (list, Mapping)):
        reason += "; put quotes around it"
    return reason


def _type_name(hint: Any) -> str:
    """Name of a type in messages."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        inner = arguments[0]
        named = dataclasses.is_dataclass(inner) or inner not in _WORDS
        return "a list" if named else f"a list of {_WORDS[inner].removeprefix('a ')}s"
    if origin is dict:
        return "a mapping"
    return _WORDS[hint]


def _describe(value: Any) -> str:
    if value is None:
        return "empty"
    kind = {dict: "a mapping", list: "a list"}.get(type(value))
    return kind or _excerpt(repr(value))


def _excerpt(text: str) -> str:
    """The text, shortened, with control characters and surrogates escaped."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= 60 else text[:57] + "…"


def _unknown_name(name: object, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    if near:
        return f"unknown, did you mean `{near[0]}`?"
    return f"unknown, known are {', '.join(known) or 'none'}"


def _not_a_choice(value: Any, choices: tuple[Any, ...]) -> str:
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    return f"{_describe(value)} is not one of {', '.join(choices)}{hint}"
