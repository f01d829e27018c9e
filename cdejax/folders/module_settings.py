"""A Transformer module's own settings: `sentence_bert_config.json` and older names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdejax.folders.keys import check_keys
from cdejax.folders.model_keys import MODEL_ARGUMENTS, MODULE
from cdejax.folders.reading import is_file, read_json_if_there

_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta",
             "xlnet")  # fmt: skip
# Older name of each kind of arguments, which counts first, and the newer one.
_ARGUMENTS = {
    "tokenizer": ("tokenizer_args", "processor_kwargs"),
    "config": ("config_args", "config_kwargs"),
    "model": ("model_args", "model_kwargs"),
}


def settings_file(folder: Path) -> Path | None:
    """The file that sentence-transformers reads: the first that is not empty.

    None without one, or without `modules.json` here or in the folder above: then
    sentence-transformers makes modules of its own and reads none.
    """
    if not any(is_file(place / "modules.json") for place in (folder, folder.parent)):
        return None
    files = [folder / f"sentence_{family}_config.json" for family in _FAMILIES]
    return next((file for file in files if read_json_if_there(file)), None)


def module_settings(folder: Path) -> dict[str, Any]:
    """The settings of the Transformer module in a folder; none without a file.

    Raises:
      ValueError: the file is no JSON object, or has a key that is refused.
    """
    file = settings_file(folder)
    raw = {} if file is None else read_json_if_there(file)
    check_keys(raw, MODULE, str(file), closed=True)
    check_keys(_arguments(raw, "model", file), MODEL_ARGUMENTS,
               f"{file}: model_args", closed=True)  # fmt: skip
    return raw


def arguments(folder: Path, kind: str) -> dict[str, Any]:
    """What the module passes on to transformers' `tokenizer` or `config`."""
    return _arguments(module_settings(folder), kind, settings_file(folder))


def _arguments(raw: dict[str, Any], kind: str, file: Path | None) -> dict[str, Any]:
    found = [name for name in _ARGUMENTS[kind] if name in raw]
    given = raw[found[0]] if found else {}
    if not isinstance(given, dict):
        raise ValueError(
            f"{file}: {found[0]} is {given!r:.60}, not an object of arguments"
        )
    return given
