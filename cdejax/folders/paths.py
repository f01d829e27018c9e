"""Model folders: on disk, inside an installed package, or on the Hugging Face hub."""

from __future__ import annotations

import difflib
import importlib.util
import re
from importlib.metadata import packages_distributions
from pathlib import Path

_PACKAGE, _HUB = "package:", "hf:"
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*/config.json",
           "*/*.safetensors")  # fmt: skip
"""Files to download from the hub: no code, no pickles, no other formats."""


MODEL_FILES = ("config.json", "modules.json")
"""Every model folder has one of these."""
_MARKS = (*MODEL_FILES, "run.json", "checkpoints")
"""Every folder of a model or run has one of these."""


def resolve_folder(name: str | Path, setting: str = "") -> Path:
    """Finds a folder by its path, package or hub name.

    Args:
      name: a folder; `package:MODULE/FOLDER` for a folder inside an installed package
        (which is found, not imported); or `hf:OWNER/NAME[@REVISION]` for a repository
        of the Hugging Face Hub, which is downloaded into its cache.
      setting: dotted name of its setting, for the message.

    Raises:
      ValueError: the folder does not exist, the package is not installed, the hub does
        not provide the repository, or the folder has a link out of it.
    """
    try:
        folder = _find(str(name))
        _check_links(folder)
        return folder
    except ValueError as error:
        raise ValueError(f"{setting}: {error}" if setting else str(error)) from None


def hub_hint(name: str) -> str:
    """` (did you mean `hf:OWNER/NAME`?)` for a name like a repository's, or nothing."""
    alike = _REPOSITORY.fullmatch(name) and not Path(name).suffix[1:].islower()
    return f" (did you mean `{_HUB}{name}`?)" if alike else ""


def local_output(path: str | Path, setting: str = "") -> Path:
    """Checks that an output path is on a file system.

    Args:
      path: a file or folder.
      setting: name of its setting or option, for the message.

    Raises:
      ValueError: it has a scheme, such as `gs://`, which is not supported; a local
        folder of that name would not be what was meant.
    """
    if found := _SCHEME.match(str(path)):
        scheme = found.group().rstrip(":/")
        where = f"{setting}: " if setting else ""
        raise ValueError(
            f"{where}{str(path)!r}: `{scheme}:` is not supported for what is written; "
            "give a folder of a mounted file system and copy the result"
        )
    return Path(path)


def check_outside(output: str | Path, model: Path) -> None:
    """Refuses an output inside the folder of the model that it is made from."""
    if Path(output).resolve().is_relative_to(model.resolve()):
        raise ValueError(
            f"{output}: is inside the folder of the model that it is made from, "
            f"{model}; give another folder"
        )


def _find(text: str) -> Path:
    if text.startswith(_PACKAGE):
        return _inside_package(text)
    if text.startswith(_HUB):
        return _from_hub(text)
    folder = Path(text).expanduser()
    if not text or not folder.is_dir():
        raise ValueError(
            f"{text!r}: no such folder{hub_hint(text)}. Give an existing folder, "
            f"`{_PACKAGE}MODULE/FOLDER` of an installed package, or "
            f"`{_HUB}OWNER/NAME` to fetch a model from the Hugging Face hub."
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
        near = difflib.get_close_matches(module, packages_distributions(), 1, 0.7)
        hint = f"did you mean {near[0]!r}?" if near else "install it, or give a folder"
        raise ValueError(f"{name!r}: the package {module!r} is not installed; {hint}")
    for place in places:
        folder = Path(place).joinpath(*inner)
        if folder.is_dir():
            return folder
    raise ValueError(
        f"{name!r}: the package {module!r} has no folder {'/'.join(inner)!r} "
        f"(looked in {', '.join(places)})."
    )


def _from_hub(name: str) -> Path:
    """Fetches a repository's configuration, tokenizer and safetensors files."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"{name!r}: fetching needs huggingface_hub: "
            "pip install '.[hub]' in cdejax's checkout"
        ) from None
    repository, _, revision = name.removeprefix(_HUB).partition("@")
    try:
        found = snapshot_download(
            repository, revision=revision or None, allow_patterns=list(_WANTED)
        )
    except Exception as error:  # network, names, rights: many types, one meaning
        reason = str(error).strip().splitlines()[0] if str(error).strip() else error
        raise ValueError(
            f"{name!r}: the hub does not give it: {type(error).__name__}: {reason}"
        ) from None
    return Path(found)


def _check_links(folder: Path) -> None:
    """Refuses links out of the folder, which would differ on another machine.

    The hub's cache stores files as links to blobs next to the snapshot's folder. Other
    folders than those of models and runs are not searched: they may be large.
    """
    if not any((folder / name).exists() for name in _MARKS):
        return
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    for path in folder.rglob("*"):
        if not path.is_symlink():
            continue
        try:
            target = path.resolve()
        except (OSError, RuntimeError):
            raise ValueError(f"{path}: is a link that ends nowhere.") from None
        if not any(target.is_relative_to(place) for place in allowed):
            raise ValueError(
                f"{path}: is a link out of the folder, to {target}; put the file "
                "itself there."
            )
